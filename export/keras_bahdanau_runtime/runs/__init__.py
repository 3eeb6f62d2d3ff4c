"""The parts of training runs that do not need Keras: options, folder, and start."""
