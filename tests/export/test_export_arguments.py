"""Arguments that an export refuses before it writes anything."""

import keras
import pytest
from models import SMALL, TEXTS

from keras_bahdanau import BeamSearch, GreedySearch, RNNSearch
from keras_bahdanau_export import export
from keras_bahdanau_export.exporter import make_exporter
from keras_bahdanau_export.options import ExportOptions


def test_texts_longer_than_the_limit_are_left_out(model, tokenizer):
    text = TEXTS[0]
    limit, references = len(tokenizer.encode_source(text)), ["long", "as long as the limit"]
    options = ExportOptions(texts=[2 * text, text], references=references, max_source_length=limit)
    exporter = make_exporter(model, options)
    exporter.check()
    assert (exporter.options.texts, exporter.options.references) == ([text], references[1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "tflite"}, "format.*tflite"),
        ({"max_length": 0}, "max_length.*0"),
        ({"format": []}, r"format.*\[\]"),
        ({"max_source_length": 0}, "max_source_length.*0"),
        ({"tokenizer": "bpe"}, "tokenizer.*'bpe'"),
        ({"texts": ["a"], "tokenizer": False}, "tokenizer"),
        ({"texts": "a"}, "texts.*'a'"),
        ({"texts": ["a"], "references": ["b", "c"]}, "references.*1 texts.*2"),
        ({"texts": ["a", None]}, r"`texts\[1\]` must be a str"),
        ({"max_bleu_loss": "0.5"}, "`max_bleu_loss` must be a number .*'0.5'"),
        ({"max_bleu_loss": float("nan")}, "`max_bleu_loss` must be a number .*nan"),
        ({"imports": "module"}, "imports.*'module'"),
        ({"precision": "int4"}, "precision.*int4"),
        ({"precision": "int8", "format": "tf_saved_model"}, "precision.*int8"),
        ({"cuda_graphs": True, "format": "tf_saved_model"}, "cuda_graphs.*True"),
        ({"skip_ended": True, "format": "tf_saved_model"}, "skip_ended.*True"),
        ({"texts": ["a"], "format": "tf_saved_model"}, "`texts` .* left out .*1 texts"),
        ({"calibrate": None}, r"`calibrate` must hold pairs .*Received: \[None\]"),
        ({"search": "greedy"}, "`search` must be a search.*'greedy'"),
        ({"search": BeamSearch}, "`search` must be a search"),
        ({"search": BeamSearch(forbidden=(0, 2, 999))}, "`search` must forbid ids .*999"),
        # More candidates than int32 can count.
        ({"search": BeamSearch(3000), "max_length": 2**20}, "`max_length` must .*: 3000 hypoth"),
        # Names that the runtime reads are fixed.
        ({"output_names": list("abcd")}, "`output_names` must be None for a RNNSearch"),
        # Arguments of keras.Model.export that have no use here.
        ({"input_signature": [keras.InputSpec(ndim=2)]}, "`input_signature`.*max_source_length"),
        ({"opset_version": 15}, "`opset_version` must be None.*Received: 15"),
        ({"is_static": True}, "`is_static` must be None.*TensorFlow traces"),
        ({"jax2tf_kwargs": {}}, "`jax2tf_kwargs` must be None.*TensorFlow traces"),
        (
            {"max_lenght": 5},
            "`max_lenght` must be an option of an export. Did you mean `max_length`",
        ),
        ({"format": "litert"}, "`format`.*without a search.*Received: 'litert'"),
    ],
)
def test_invalid_arguments_are_named(model, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.export(tmp_path / "a", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_generate_takes_no_search(tmp_path):
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.GRU(2)])
    for arguments in ({"search": GreedySearch()}, {"stepwise": True}, {"texts": ["a"]}):
        (name,) = arguments
        with pytest.raises(
            ValueError, match=f"`{name}` must .*left out for a model without a search"
        ):
            export(model, tmp_path / "a", **arguments)
    with pytest.raises(ValueError, match=r"Keras's own `model\.export`"):
        export(model, tmp_path / "a", format="litert")
    with pytest.raises(ValueError, match="`model` must be a Keras model"):
        export(keras.layers.Dense(2), tmp_path / "a")


def test_a_model_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`model` must have weights"):
        RNNSearch(50, 40, **SMALL).export(tmp_path / "a")


def test_a_model_with_weights_that_are_not_finite_is_refused(tmp_path):
    model = RNNSearch(50, 40, **SMALL)
    model.build()
    bias = model.bridge.weights[-1]
    bias.assign(keras.ops.full(bias.shape, float("nan")))
    with pytest.raises(ValueError, match=r"`model` must be .* finite numbers.* NaN in "):
        export(model, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tokenizer, tmp_path):
    model = RNNSearch(50, 40, **SMALL)
    model.build()
    with pytest.raises(ValueError, match="at most the model's 50 source ids"):
        export(model, tmp_path / "a", tokenizer=tokenizer)
    assert list(tmp_path.iterdir()) == []
