"""A static web site that translates in the browser."""

from keras_bahdanau_runtime.site.writer import write_site

__all__ = ["write_site"]
