"""Writes the SavedModel: the whole search as one TensorFlow function."""

import keras
import tensorflow as tf

from keras_bahdanau_export.signature import SAMPLE, TRANSLATE


def signature_of(search):
    """`TRANSLATE`, or `SAMPLE` for a search that draws."""
    return TRANSLATE if search.noise(1, 1) is None else SAMPLE


def search_function(model, search, max_length):
    """The model's search as a `tf.function` with the names, dtypes and axes of `signature_of`.

    Args:
        model: A `keras_bahdanau.Seq2Seq` on the TensorFlow backend.
        search: The search that goes into the graph.
        max_length: Number of tokens after which hypotheses are cut, an int.

    Returns:
        A `tf.function` of `source` `(batch, source_length)` int32, and of `noise`
        `(batch, beam, max_length)` float32 if the search draws, that returns a dict of tensors.
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"Tracing needs the TensorFlow backend. Received: {keras.config.backend()!r}"
        )
    signature = signature_of(search)
    specs = [tf.TensorSpec([None] * len(t.axes), t.dtype, name=t.name) for t in signature.inputs]

    def named(found):
        found = found._asdict()
        # An identity gives each output the name that the graph's users will see.
        return {t.name: tf.identity(found[t.name], name=t.name) for t in signature.outputs}

    def translate(source):
        return named(model.search(source, search, max_length))

    def sample(source, noise):
        return named(model.search(source, search, max_length, noise=noise))

    function = translate if signature is TRANSLATE else sample
    return tf.function(function, input_signature=specs, autograph=False)


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
