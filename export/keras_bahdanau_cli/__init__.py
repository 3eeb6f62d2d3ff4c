"""The commands of `keras-bahdanau`: one file for each, and `app`, which registers them."""
