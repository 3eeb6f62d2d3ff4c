"""Pictures and web pages of alignments."""

from keras_bahdanau_runtime.pictures.page import alignment_page
from keras_bahdanau_runtime.pictures.plots import (
    plot_alignment,
    plot_alignments,
    plot_image_alignment,
    plot_weights,
)

__all__ = [
    "alignment_page",
    "plot_alignment",
    "plot_alignments",
    "plot_image_alignment",
    "plot_weights",
]
