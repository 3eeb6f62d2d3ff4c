"""Writes the SavedModel: the whole search as one TensorFlow function."""

import keras
import tensorflow as tf

from keras_bahdanau_export.signature import TRANSLATE


def search_function(model, search, max_length):
    """The model's search as a `tf.function` with the names, dtypes and axes of `TRANSLATE`.

    Args:
        model: A `keras_bahdanau.Seq2Seq` on the TensorFlow backend.
        search: The search that goes into the graph.
        max_length: Number of tokens after which hypotheses are cut, an int.

    Returns:
        A `tf.function` of `source` `(batch, source_length)` int32 that returns a dict of tensors.
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"Tracing needs the TensorFlow backend. Received: {keras.config.backend()!r}"
        )
    source = TRANSLATE.inputs[0]
    spec = tf.TensorSpec([None] * len(source.axes), source.dtype, name=source.name)

    @tf.function(input_signature=[spec], autograph=False)
    def translate(source):
        found = model.search(source, search, max_length)._asdict()
        # An identity gives each output the name that the graph's users will see.
        return {t.name: tf.identity(found[t.name], name=t.name) for t in TRANSLATE.outputs}

    return translate


def write_saved_model(model, folder, search, max_length):
    """Writes a SavedModel with the signature `translate` that loads without this package.

    Args:
        model: A `keras_bahdanau.Seq2Seq` on the TensorFlow backend.
        folder: The folder to make.
        search: The search that goes into the graph.
        max_length: Number of tokens after which hypotheses are cut, an int.
    """
    module = tf.Module()
    module.translate = search_function(model, search, max_length)
    # A SavedModel keeps the variables that hang on the module.
    module.variables_ = [v.value for v in model.variables]
    signature = module.translate.get_concrete_function()
    tf.saved_model.save(
        module, str(folder), signatures={"translate": signature, "serving_default": signature}
    )
