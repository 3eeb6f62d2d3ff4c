"""The commands of `keras-bahdanau`, a file for each; `app` puts them together."""
