"""Training runs as far as they need no Keras: options, folder, and what comes before training."""
