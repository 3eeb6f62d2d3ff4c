"""Pictures and web pages of alignments."""

from keras_bahdanau_runtime.pictures.heatmap import plot_alignment, plot_alignments
from keras_bahdanau_runtime.pictures.images import plot_image_alignment
from keras_bahdanau_runtime.pictures.page import alignment_page

__all__ = [
    "alignment_page",
    "plot_alignment",
    "plot_alignments",
    "plot_image_alignment",
]
