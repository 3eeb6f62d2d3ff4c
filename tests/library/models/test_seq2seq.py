"""Models of an encoder and a decoder: training, saving, generation and their arguments."""

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
from copy_task import compile_to_copy, copy_task
from keras import ops
from layer_checks import WIDE_POLICIES, dtype_policy
from models import (
    MODELS,
    SIZES,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    VOCABULARIES,
    log_softmax,
    plain_gru,
    teacher_forced,
)

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    BidirectionalEncoder,
    FixedContext,
    RNNSearch,
    Seq2Seq,
    TokenCrossentropy,
    TranslationDataset,
)
from keras_bahdanau.layers import CoverageAttention, ScheduledSampling
from keras_bahdanau_runtime.ids import PAD

LENGTH = 7  # longer than any sentence of the task
BEAM = BeamSearch(3, 0.6)
INPUTS, LABELS = copy_task(rows=32)
SOURCE = INPUTS["source"][:4]
GUIDE_SHAPE = (*LABELS.shape, INPUTS["source"].shape[1])
every_model = pytest.mark.parametrize("name", MODELS)


@functools.cache
def trained(name):
    """Return a model after a short `fit`."""
    keras.utils.set_random_seed(0)
    model = compile_to_copy(MODELS[name]())
    model.fit(INPUTS, LABELS, epochs=4, batch_size=16, verbose=0)
    return model


@functools.cache
def translations(name):
    """Return the result of a beam of 3 for `SOURCE`."""
    return trained(name).generate(SOURCE, search=BEAM, max_length=LENGTH)


# --- Training -------------------------------------------------------------------------------------


def guided_model(attention, factor=1.0):
    """Return a model that compiles quickly and has a guided-alignment loss."""
    keras.utils.set_random_seed(0)
    return Seq2Seq(
        *VOCABULARIES,
        embedding_dim=8,
        encoder=keras.layers.Conv1D(12, 3, padding="same"),
        decoder=AttentiveDecoder(keras.layers.GRUCell(12), attention),
        bridge="mean",
        guided_alignment=factor,
    )


def test_guided_alignment_adds_a_loss_that_training_lowers():
    model = compile_to_copy(guided_model(BahdanauAttention(9)))
    # Each target word is aligned to the source word at its position.
    guide = np.eye(LABELS.shape[1], dtype="float32")[None] * (LABELS != PAD)[..., None]
    guided = {**INPUTS, "alignment": guide}

    def entropy():
        _, weights = teacher_forced(model, INPUTS["source"], LABELS[:, None])
        aligned = np.diagonal(weights[:, 0], axis1=1, axis2=2)[LABELS != PAD]
        return -np.log(aligned.astype("float64")).mean()

    tokens = model.evaluate(INPUTS, LABELS, batch_size=len(LABELS), verbose=0)
    before = entropy()
    losses = model.fit(guided, LABELS, epochs=16, batch_size=len(LABELS), verbose=0)
    np.testing.assert_allclose(losses.history["loss"][0], tokens + before, rtol=1e-4)
    assert entropy() < 0.9 * before


def test_guided_alignment_does_not_apply_to_a_fixed_context():
    """Its weights are 1 at one position and 0 elsewhere: the loss would be 69 nats per word."""
    model = compile_to_copy(guided_model(FixedContext()))
    guide = np.full(GUIDE_SHAPE, 0.2, "float32")
    guided = model.evaluate({**INPUTS, "alignment": guide}, LABELS, verbose=0)
    assert guided == model.evaluate(INPUTS, LABELS, verbose=0)


class Penalized(BahdanauAttention):
    """Attention whose penalty is a given tensor."""

    penalized = True
    loss = 0.0

    def penalty(self, weights, query_mask):
        return ops.convert_to_tensor(self.loss)


def test_a_penalty_is_counted_even_if_its_id_is_that_of_an_earlier_loss():
    """A tensor may be at the memory address of a deleted one and so have its `id`."""
    attention = Penalized(4)
    model = guided_model(attention)
    model.build()

    def losses(inputs):
        weights = model.trainable_variables, model.non_trainable_variables
        return model.stateless_call(*weights, inputs, return_losses=True)[2]

    guided = {**INPUTS, "alignment": np.zeros(GUIDE_SHAPE, "float32")}
    before = losses(guided)
    assert len(before) == 2
    for attention.loss in before:
        assert len(losses(INPUTS)) == 1
        assert len(losses(guided)) == 2


def test_dropout_is_applied_only_in_training():
    model, batch = trained("stacked_lstm"), {"source": SOURCE, "target": SOURCE}
    logits, repeated = (ops.convert_to_numpy(model(batch)) for _ in range(2))
    dropped = ops.convert_to_numpy(model(batch, training=True))
    np.testing.assert_array_equal(logits, repeated)
    assert np.abs(dropped - logits).max() > 1e-3


def spread(ids, seed):
    """The same ids in two more columns, with padding at places drawn at random."""
    rng = np.random.default_rng(seed)
    wide = np.full((len(ids), ids.shape[1] + 2), PAD, ids.dtype)
    for row, sequence in zip(wide, ids, strict=True):
        kept = sequence[sequence != PAD]
        row[np.sort(rng.choice(len(row), len(kept), replace=False))] = kept
    return wide


@every_model
def test_padding_at_any_place_changes_no_logits_and_no_loss(name):
    model, places = trained(name), INPUTS["target"] != PAD
    inputs = {"source": spread(INPUTS["source"], 0), "target": spread(INPUTS["target"], 1)}
    labels = spread(LABELS, 1)
    assert ((inputs["target"] != PAD) == (labels != PAD)).all() and (labels[:, 0] == PAD).any()
    logits = model.predict(inputs, verbose=0)[labels != PAD]
    np.testing.assert_allclose(logits, model.predict(INPUTS, verbose=0)[places], 0, 1e-4)
    losses = [float(model.evaluate(*of, verbose=0)) for of in ((inputs, labels), (INPUTS, LABELS))]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("method", ["fit", "train_on_batch"])
@pytest.mark.parametrize("labels", [LABELS, LABELS[..., None]], ids=["ids", "a last axis"])
def test_class_weights_of_rows_are_refused(method, labels):
    """Keras makes one weight for each row, by the position of its largest id."""
    model = compile_to_copy(guided_model(BahdanauAttention(4)))
    message = (
        r"`class_weight` .* write TokenCrossentropy\(class_weight=.* `sample_weight`.*{3: 5.0}"
    )
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(INPUTS, labels, class_weight={3: 5.0})


SPARSE = keras.losses.SparseCategoricalCrossentropy


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        "crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        SPARSE(),
        keras.losses.CategoricalCrossentropy(),
    ],
    ids=["function name", "class name", "by shape", "function", "instance", "one-hot"],
)
def test_a_loss_of_probabilities_is_refused(loss, method):
    model = guided_model(BahdanauAttention(4))
    model.compile("sgd", loss)
    message = r"`loss` of `compile` must read logits, .*TokenCrossentropy\(\), .*from_logits=True"
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(INPUTS, LABELS)


def test_a_metric_of_probabilities_is_refused():
    model, metrics = guided_model(BahdanauAttention(4)), ["accuracy", SPARSE.__name__]
    model.compile("sgd", TokenCrossentropy(), metrics=metrics)
    with pytest.raises(ValueError, match="`metrics` of `compile` must read logits"):
        model.evaluate(INPUTS, LABELS, verbose=0)


def test_a_loss_of_logits_from_keras_counts_every_position():
    model = guided_model(BahdanauAttention(4))
    model.compile("sgd", SPARSE(from_logits=True))
    log_probs = log_softmax(model(INPUTS))
    expected = -np.take_along_axis(log_probs, LABELS[..., None], axis=-1).mean()
    loss = model.evaluate(INPUTS, LABELS, verbose=0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_predict_needs_batches_of_one_target_width():
    model = guided_model(BahdanauAttention(4))
    sources, targets = [[5, 3], [6, 3]], [[7, 3], [7, 8, 9, 3]]
    two, one = (TranslationDataset(sources, targets, 1, bucket) for bucket in (2, 4))
    with pytest.raises(ValueError, match=r"`x` of `predict` .*predict_on_batch.* \[2, 4\]"):
        model.predict(two, verbose=0)
    assert model.predict(one, verbose=0).shape == (2, 4, TARGET_VOCABULARY)


class TrainingDependentBridge(keras.layers.Layer):
    """A bridge that adds ten million in training."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, annotations, mask=None, training=None):
        return [ops.mean(annotations, axis=1) + (1e7 if training else 0.0)]


def test_a_custom_bridge_gets_the_training_flag():
    keras.utils.set_random_seed(0)
    model = model_of(BidirectionalEncoder(2), bridge=TrainingDependentBridge())
    model.build()
    model.compile(keras.optimizers.SGD(0.0), TokenCrossentropy())
    batch = INPUTS, LABELS
    assert float(model.train_on_batch(*batch)) > 100 * float(model.test_on_batch(*batch))


def test_a_model_may_have_its_own_dtype_policy():
    model = compile_to_copy(MODELS["rnnsearch"](dtype="mixed_float16"))
    decoder = model.decoder
    for layer in (*model.layers, decoder.cell, decoder.attention, decoder.readout):
        assert layer.dtype_policy.name == "mixed_float16", layer.path
    assert np.isfinite(float(model.train_on_batch(INPUTS, LABELS)))


# --- Saving ---------------------------------------------------------------------------------------

CHILD = """
    import sys
    import keras
    import numpy as np
    import keras_bahdanau

    folder, *names = sys.argv[1:]
    inputs = dict(np.load(f"{folder}/data.npz"))
    results = {}
    for name in names:
        model = keras.saving.load_model(f"{folder}/{name}.keras")
        results[f"{name} class"] = type(model).__name__
        results[f"{name} logits"] = keras.ops.convert_to_numpy(model(inputs, training=False))
        if name == "rnnsearch":
            search = keras_bahdanau.BeamSearch(3, 0.6)
            results |= model.generate(inputs["source"][:4], search, max_length=7)._asdict()
    np.savez(f"{folder}/results.npz", **results)
"""


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """Results of the saved models in a new process that imports only Keras and this package."""
    folder = tmp_path_factory.mktemp("saved")
    np.savez(folder / "data.npz", **INPUTS)
    for name in MODELS:
        trained(name).save(folder / f"{name}.keras")
    root = Path(__file__).resolve().parents[3]
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), *MODELS],
        check=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    return dict(np.load(folder / "results.npz"))


@every_model
def test_a_saved_model_has_the_same_outputs_in_a_new_process(name, reloaded):
    model = trained(name)
    assert reloaded[f"{name} class"] == type(model).__name__
    logits = ops.convert_to_numpy(model(INPUTS, training=False))
    np.testing.assert_allclose(reloaded[f"{name} logits"], logits, rtol=1e-4, atol=1e-5)
    if name == "rnnsearch":
        for field, value in translations(name)._asdict().items():
            np.testing.assert_allclose(reloaded[field], value, rtol=1e-4, atol=1e-5)


@every_model
def test_config_round_trip(name):
    model = MODELS[name]()
    copy = type(model).from_config(model.get_config())
    assert copy.get_config() == model.get_config()
    copy.build()
    model.build()
    assert [w.shape for w in copy.weights] == [w.shape for w in model.weights]


@pytest.mark.parametrize("name", ["rnnsearch", "rnnencdec"])
def test_a_config_keeps_scheduled_sampling_and_guided_alignment(name):
    sampling = ScheduledSampling("linear", k=0.9, slope=0.001)
    model = MODELS[name](scheduled_sampling=sampling, guided_alignment=0.25)
    copy = type(model).from_config(model.get_config())
    assert copy.get_config() == model.get_config()
    assert copy.scheduled_sampling.get_config() == sampling.get_config()
    assert copy.guided_alignment == 0.25


# --- Generation -----------------------------------------------------------------------------------


@every_model
def test_padding_and_the_rest_of_the_batch_do_not_change_a_translation(name):
    batch = translations(name)
    alone = trained(name).generate(
        np.pad(SOURCE[1:2], ((0, 0), (0, 7))), search=BEAM, max_length=LENGTH
    )
    longest = alone.tokens.shape[2]
    np.testing.assert_array_equal(batch.tokens[1:2, :, :longest], alone.tokens)
    np.testing.assert_array_equal(batch.lengths[1:2], alone.lengths)
    np.testing.assert_allclose(batch.scores[1:2], alone.scores, rtol=1e-4)
    width = SOURCE.shape[1]
    np.testing.assert_allclose(
        batch.alignments[1:2, :, :longest], alone.alignments[..., :width], atol=1e-5
    )
    assert alone.alignments.shape[-1] == width + 7 and not alone.alignments[..., width:].any()


def test_generate_takes_lists_of_ids():
    rows = [[int(i) for i in row if i != PAD] for row in SOURCE]
    result = trained("rnnsearch").generate(rows, search=BEAM, max_length=LENGTH)
    for value, expected in zip(result, translations("rnnsearch"), strict=True):
        np.testing.assert_array_equal(value, expected)


BAD_SOURCES = {
    "no sentence": [],
    "no row": np.zeros((0, 4), "int32"),
    "no column": np.zeros((2, 0), "int32"),
    "one sentence, not a batch": [5, 6, 3],
    "three axes": np.ones((1, 2, 3), "int32"),
    "only padding": [[5, 3], [0, 0]],
    "padding at the left": [[0, 5, 3]],
    "padding inside": [[5, 0, 3]],
    "an empty sentence": [[5, 3], []],
    "id too large": [[5, SOURCE_VOCABULARY]],
    "id far too large": [[5, 2**40]],
    "negative id": [[5, -1]],
    "floats": np.ones((1, 3)),
    "floats in a list": [[5.5, 3.0]],
    "text": ["a man"],
    "text in a list": [["a", "man"]],
    "booleans": np.ones((1, 3), "bool"),
}


@pytest.mark.parametrize("source", BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_an_unreadable_source_is_refused(source):
    with pytest.raises(ValueError, match="`source`"):
        trained("rnnsearch").generate(source)


# --- Encoders, bridges and embeddings -------------------------------------------------------------


class Projection(keras.layers.Layer):
    """An encoder that projects each word without its context."""

    def build(self, inputs_shape):
        self.kernel = self.add_weight(shape=(inputs_shape[-1], 6), name="kernel")

    def call(self, inputs, mask=None, training=None):
        return ops.matmul(inputs, self.kernel)


def model_of(encoder, attention=None, **arguments):
    decoder = AttentiveDecoder(keras.layers.GRUCell(4), attention or BahdanauAttention(3))
    return Seq2Seq(*VOCABULARIES, 5, encoder=encoder, decoder=decoder, **arguments)


def test_an_encoder_may_be_built_already():
    encoder = Projection()
    encoder.build((None, None, 5))
    model = model_of(encoder, bridge="zero")
    model.build()
    assert len(encoder.weights) == 1 and model.count_params() > 0


GRU = functools.partial(keras.layers.GRU, 4)
GRUS = functools.partial(keras.layers.GRU, 4, return_sequences=True)


@pytest.mark.parametrize(
    "encoder",
    [
        GRU(),
        GRUS(return_state=True),
        keras.layers.Bidirectional(GRU()),
        keras.Sequential([GRUS(), GRU()]),
    ],
    ids=["last state", "states", "last states", "stacked"],
)
def test_an_encoder_that_returns_no_annotations_is_refused(encoder):
    message = "`encoder` must return annotations .* write return_sequences=True and return_state=F"
    with pytest.raises(ValueError, match=message):
        model_of(encoder, bridge="last")


@pytest.mark.parametrize(
    "encoder",
    [
        GRUS(),
        keras.Sequential([GRUS()]),
        keras.layers.Bidirectional(GRUS(), merge_mode="sum"),
        keras.Sequential([GRUS(), keras.layers.Dropout(0.1)]),
        keras.Sequential([keras.layers.Bidirectional(GRUS()), keras.Sequential([GRUS()])]),
    ],
    ids=["forward", "stacked", "sum", "dropout on top", "forward on top"],
)
def test_the_default_bridge_is_refused_without_a_backward_direction(encoder):
    with pytest.raises(ValueError, match=r'`bridge` must not be "backward_first" .* bridge="last"'):
        model_of(encoder)
    assert model_of(encoder, bridge="last").bridge.source == "last"


def test_the_default_bridge_takes_the_backward_half_of_keras_bidirectional():
    assert model_of(keras.layers.Bidirectional(GRUS())).bridge.source == "backward_first"


def test_a_cell_as_encoder_is_refused():
    with pytest.raises(ValueError, match=r"`encoder` must be a layer .* write keras\.layers\.RNN"):
        model_of(keras.layers.GRUCell(4))


class Summing(keras.layers.Layer):
    def call(self, inputs, mask=None, training=None):
        return ops.sum(inputs, axis=1)


def test_a_custom_encoder_that_returns_no_annotations_is_refused():
    message = r"must return annotations, one tensor \(batch, time, width\). Received: <Sum"
    with pytest.raises(ValueError, match=f"`encoder` {message}"):
        model_of(Summing(), bridge="zero").build()


def test_an_encoder_without_a_mask_argument_reads_zeros_for_padding():
    model = model_of(keras.layers.Conv1D(6, 3, padding="same"), bridge="last")
    model.build()
    short, _, state = model.encode(ops.convert_to_tensor([[5, 6, 3]]))
    padded, _, padded_state = model.encode(ops.convert_to_tensor([[5, 6, 3, 0, 0]]))
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (short, padded[:, :3])), atol=1e-6)
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (state[0], padded_state[0])), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("encoder", None, "must be a Keras layer.*None"),
        ("decoder", keras.layers.GRU(4), "must be an AttentiveDecoder.*<GRU"),
        ("decoder", None, "must be an AttentiveDecoder.*None"),
        ("bridge", "first", r"must be one of \('backward_first', .*'first'"),
        ("bridge", None, r"must be one of \('backward_first', .*None"),
        ("scheduled_sampling", 0.5, "must be a ScheduledSampling or None.*0.5"),
        ("guided_alignment", None, "must be a number of at least 0.*None"),
        ("guided_alignment", float("nan"), "must be a number of at least 0.*nan"),
        ("guided_alignment", -1.0, "must be a number of at least 0.*-1"),
    ],
)
def test_arguments_of_another_type_or_out_of_range_are_refused(name, value, message):
    decoder = AttentiveDecoder(keras.layers.GRUCell(4), BahdanauAttention(3))
    arguments = {"encoder": BidirectionalEncoder(4), "decoder": decoder, name: value}
    with pytest.raises(ValueError, match=f"Argument `{name}` {message}"):
        Seq2Seq(*VOCABULARIES, 5, **arguments)


def test_a_second_build_changes_nothing():
    model = model_of(BidirectionalEncoder(4))
    model.build()
    weights = model.get_weights()
    model.build((None, 7))
    for weight, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(weight, before)


def test_a_bridge_must_return_the_states_of_the_cell():
    model = model_of(BidirectionalEncoder(4), bridge=keras.layers.Dense(4))
    with pytest.raises(ValueError, match=r"must hold a tensor for each state.* of sizes \[4\]"):
        model({"source": np.array([[5, 3]]), "target": np.array([[2, 5]])})


@pytest.mark.parametrize("kind", [list, dict])
def test_inputs_without_source_and_target_are_refused(kind):
    model, ids = model_of(BidirectionalEncoder(4)), np.array([[5, 3]])
    inputs = {"source": ids} if kind is dict else [ids, ids]
    with pytest.raises(ValueError, match='`inputs` must be a dict with the ids "source" and "tar'):
        model(inputs)


def test_tied_embeddings_share_one_matrix():
    model = trained("plain_gru")
    assert model.output_layer is None
    shapes = [tuple(w.shape) for w in model.trainable_weights]
    assert shapes.count((TARGET_VOCABULARY, 9)) == 1
    states = ops.convert_to_tensor(np.eye(9, dtype="float32"))
    np.testing.assert_allclose(
        ops.convert_to_numpy(model._logits(states)),
        ops.convert_to_numpy(model.target_embedding.embeddings).T,
        rtol=1e-5,
    )


def test_joined_embeddings_are_appended_to_the_annotations():
    model = plain_gru()
    model.build()
    joined, _, cell_state = model.encode(ops.convert_to_tensor(SOURCE))
    model.join_embeddings = False
    annotations, _, same_state = model.encode(ops.convert_to_tensor(SOURCE))
    embedded = model.source_embedding(SOURCE)
    for actual, expected in ((joined[..., :11], annotations), (joined[..., 11:], embedded)):
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (actual, expected)))
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (cell_state[0], same_state[0])))


def test_initial_embeddings_have_length_one():
    """The squares of M normal numbers of variance 1 / M sum to 1, with an sd of sqrt(2 / M)."""
    model = RNNSearch(400, 500, **{**SIZES, "embedding_dim": 128}, initializer=None)
    model.build()
    first, second = (
        ops.convert_to_numpy(layer.embeddings)
        for layer in (model.source_embedding, model.target_embedding)
    )
    for embeddings in (first, second):
        squares = (embeddings**2).sum(-1)
        assert abs(squares.mean() - 1) < 0.05 and squares.std() < 0.25
    assert (first != second[:400]).all()


@pytest.mark.parametrize("policy", WIDE_POLICIES)
def test_logits_of_tied_embeddings_have_the_compute_dtype(policy):
    with dtype_policy(policy):
        logits = plain_gru()(INPUTS)
    assert keras.backend.standardize_dtype(logits.dtype) == policy.removeprefix("mixed_")


def test_tied_embeddings_of_another_width_are_refused():
    model = RNNSearch(*VOCABULARIES, **SIZES, tie_embeddings=True)
    with pytest.raises(ValueError, match=r"`tie_embeddings` needs .* width 6"):
        model.build()


@pytest.mark.parametrize(
    "name",
    [
        "source_vocabulary_size", "target_vocabulary_size", "embedding_dim", "units",
        "attention_units", "maxout_units", "encoder_layers",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, -3, 2.0, None])
def test_sizes_must_be_positive_integers(name, value):
    arguments = {"source_vocabulary_size": 10, "target_vocabulary_size": 10, **SIZES, name: value}
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer"):
        RNNSearch(**arguments)


@pytest.mark.parametrize("name", ["rnnsearch", "stacked_lstm"])
def test_a_loaded_model_has_the_frozen_layers_of_the_saved_one(name, tmp_path):
    model = compile_to_copy(MODELS[name]())
    model.source_embedding.trainable = False
    model.encoder.forward_layers[0].trainable = False
    model.decoder.trainable = False
    model.decoder.readout.trainable = True
    model.train_on_batch(INPUTS, LABELS)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    trainable = [weight.name for weight in model.weights if weight.trainable]
    assert [weight.name for weight in loaded.weights if weight.trainable] == trainable
    frozen = loaded.source_embedding, loaded.encoder.forward_layers[0], loaded.decoder
    assert not any(layer.trainable for layer in frozen)
    assert int(loaded.optimizer.iterations) == 1
    loaded.decoder.trainable = True
    assert all(weight.trainable for weight in loaded.decoder.weights)


def test_a_config_without_recorded_layer_settings_is_accepted():
    for name in ("rnnsearch", "stacked_lstm"):
        config = MODELS[name]().get_config()
        assert config.pop("told") == []
        assert len(type(MODELS[name]()).from_config(config)._made()) >= 3


def save_and_load(model, path, atol=0.0):
    """Return the loaded model, after checking that it has the logits of the saved one."""
    model.save(path)
    loaded = keras.saving.load_model(path)
    logits = (ops.convert_to_numpy(each(INPUTS, training=False)) for each in (model, loaded))
    np.testing.assert_allclose(*logits, rtol=0, atol=atol)
    return loaded


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # in Keras's own tied layer, on torch
@pytest.mark.parametrize(
    ("name", "mode"), [("rnnsearch", "int8"), ("plain_gru", "int8"), ("plain_gru", "int4")]
)
def test_a_quantized_model_is_saved(name, mode, tmp_path):
    model = MODELS[name]()
    model.build()
    model.quantize(mode)
    loaded = save_and_load(model, tmp_path / "model.keras")
    assert [weight.dtype for weight in loaded.weights] == [weight.dtype for weight in model.weights]


def test_a_model_with_lora_is_saved(tmp_path):
    model = MODELS["rnnsearch"]()
    model.build()
    model.source_embedding.enable_lora(2)
    model.output_layer.enable_lora(3)
    loaded = save_and_load(model, tmp_path / "model.keras", atol=1e-6)
    names = [[weight.name for weight in each.trainable_weights] for each in (model, loaded)]
    assert names[0] == names[1] and "lora_embeddings_a" in names[0]
    assert loaded.output_layer.lora_rank == 3


def functional(layers):
    inputs = keras.Input((None, 5))
    return keras.Model(inputs, layers[0](inputs))


@pytest.mark.filterwarnings("ignore:.*does not support masking")  # Keras warns about Conv1D
@pytest.mark.parametrize("make", [keras.Sequential, functional])
def test_an_encoder_model_of_layers_without_masks_ignores_padding(make):
    layer = keras.layers.Conv1D(6, 3, padding="same", bias_initializer="ones")
    model = model_of(make([layer]), bridge="mean")
    logits = []
    for more in (0, 4):
        source = np.pad(INPUTS["source"], [(0, 0), (0, more)])
        logits.append(ops.convert_to_numpy(model({**INPUTS, "source": source})))
    np.testing.assert_allclose(*logits, atol=1e-5)


def penalty_of(model, inputs):
    """Return the loss that a training call adds."""
    model(inputs, training=True)
    return ops.convert_to_numpy(model.losses[0]).item()


def test_padding_of_the_target_adds_no_coverage_loss():
    model = model_of(BidirectionalEncoder(4), CoverageAttention(6, coverage_loss_weight=1.0))
    padded = {**INPUTS, "target": np.pad(INPUTS["target"], [(0, 0), (0, 5)])}
    loss = penalty_of(model, INPUTS)
    assert penalty_of(model, padded) == pytest.approx(loss, rel=1e-5) and loss > 0


def test_guided_alignment_is_the_factor_of_its_loss():
    inputs = {**INPUTS, "alignment": np.ones(GUIDE_SHAPE, "float32")}
    model, scaled = (guided_model(BahdanauAttention(6), factor) for factor in (1.0, 2.5))
    expected = 2.5 * penalty_of(model, inputs)
    scaled.build()
    scaled.set_weights(model.get_weights())
    assert penalty_of(scaled, inputs) == pytest.approx(expected, rel=1e-5)
