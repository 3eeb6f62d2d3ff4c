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
from models import (
    MODELS,
    SIZES,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    VOCABULARIES,
    plain_gru,
    teacher_forced,
)

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BeamSearch,
    BidirectionalEncoder,
    CoverageAttention,
    FixedContext,
    GreedySearch,
    RNNSearch,
    ScheduledSampling,
    Seq2Seq,
    TokenCrossentropy,
)
from keras_bahdanau_runtime.ids import EOS, PAD

LENGTH = 7  # longer than any sentence of the task
BEAM = BeamSearch(3, 0.6)


INPUTS, LABELS = copy_task(rows=32)
SOURCE = INPUTS["source"][:4]
every_model = pytest.mark.parametrize("name", MODELS)


@functools.cache
def trained(name):
    """A model that has learned a little, and its losses on the way; made once."""
    keras.utils.set_random_seed(0)
    model = compile_to_copy(MODELS[name]())
    history = model.fit(INPUTS, LABELS, epochs=4, batch_size=16, verbose=0)
    return model, history.history["loss"]


@functools.cache
def translations(name):
    """What a beam of 3 makes of `SOURCE`, NumPy arrays; made once."""
    return trained(name)[0].generate(SOURCE, search=BEAM, max_length=LENGTH)


# Training


def guided_model(attention):
    """A model that is quick to compile, whose alignments count in its loss."""
    return Seq2Seq(
        *VOCABULARIES,
        embedding_dim=8,
        encoder=keras.layers.Conv1D(12, 3, padding="same"),
        decoder=AttentiveDecoder(keras.layers.GRUCell(12), attention),
        bridge="mean",
        guided_alignment=1.0,
    )


def test_fit_is_guided_by_alignments():
    """The loss is that of tokens plus that of alignments, and the weights come to follow them."""
    model = compile_to_copy(guided_model(BahdanauAttention(9)))
    # Each target word is said to be aligned to the source word at its own place.
    guide = np.eye(LABELS.shape[1], dtype="float32")[None] * (LABELS != PAD)[..., None]
    guided = {**INPUTS, "alignment": guide}

    def entropy():
        _, weights = teacher_forced(model, INPUTS["source"], LABELS[:, None])
        picked = np.diagonal(weights[:, 0], axis1=1, axis2=2)[LABELS != PAD]
        return -np.log(picked.astype("float64")).mean()

    tokens = model.evaluate(INPUTS, LABELS, batch_size=len(LABELS), verbose=0)
    before = entropy()
    losses = model.fit(guided, LABELS, epochs=16, batch_size=len(LABELS), verbose=0)
    np.testing.assert_allclose(losses.history["loss"][0], tokens + before, rtol=1e-4)
    assert entropy() < 0.9 * before


def test_a_fixed_context_has_nothing_to_guide():
    """Its weights are one at a place and zero elsewhere: a guide would add 69 nats a word."""
    model = compile_to_copy(guided_model(FixedContext()))
    guide = np.full((*LABELS.shape, INPUTS["source"].shape[1]), 0.2, "float32")
    guided = model.evaluate({**INPUTS, "alignment": guide}, LABELS, verbose=0)
    assert guided == model.evaluate(INPUTS, LABELS, verbose=0)


class Penalized(BahdanauAttention):
    """Attention with a loss that is given to it."""

    penalized = True
    loss = 0.0

    def penalty(self, weights, query_mask):
        return ops.convert_to_tensor(self.loss)


def test_a_loss_is_counted_once_whatever_was_where_it_is():
    """A loss may lie in memory where one of an earlier step lay: its `id` is the same."""
    attention = Penalized(4)
    model = guided_model(attention)
    model.build()

    def losses(inputs):
        weights = model.trainable_variables, model.non_trainable_variables
        return model.stateless_call(*weights, inputs, return_losses=True)[2]

    guide = np.zeros((*LABELS.shape, INPUTS["source"].shape[1]), "float32")
    guided = {**INPUTS, "alignment": guide}
    before = losses(guided)
    assert len(before) == 2
    for attention.loss in before:
        assert len(losses(INPUTS)) == 1
        assert len(losses(guided)) == 2


def test_refuses_a_negative_guide():
    with pytest.raises(ValueError, match="`guided_alignment` must be a number of at least 0"):
        MODELS["rnnsearch"](guided_alignment=-1.0)


def test_dropout_acts_in_training_alone():
    model, _ = trained("stacked_lstm")
    batch = {"source": SOURCE, "target": SOURCE}
    still, again = (ops.convert_to_numpy(model(batch)) for _ in range(2))
    noisy = ops.convert_to_numpy(model(batch, training=True))
    np.testing.assert_array_equal(still, again)
    assert np.abs(noisy - still).max() > 1e-3


@keras.saving.register_keras_serializable(package="test_seq2seq")
class Noisy(keras.layers.Layer):
    """A bridge that hands on ten million where it is trained."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, annotations, mask=None, training=None):
        return [ops.mean(annotations, axis=1) + (1e7 if training else 0.0)]


def test_a_bridge_of_ones_own_is_told_of_training():
    keras.utils.set_random_seed(0)
    decoder = AttentiveDecoder(keras.layers.GRUCell(8), BahdanauAttention(5))
    model = Seq2Seq(*VOCABULARIES, 8, BidirectionalEncoder(4), decoder, bridge=Noisy())
    model.build()
    model.compile(keras.optimizers.SGD(0.0), TokenCrossentropy())
    batch = INPUTS, LABELS
    trained, still = float(model.train_on_batch(*batch)), float(model.test_on_batch(*batch))
    assert trained > 100 * still


def test_a_policy_may_be_given_to_one_model():
    model = compile_to_copy(MODELS["rnnsearch"](dtype="mixed_float16"))
    decoder = model.decoder
    for layer in (*model.layers, decoder.cell, decoder.attention, decoder.readout):
        assert layer.dtype_policy.name == "mixed_float16", layer.path
    assert np.isfinite(float(model.train_on_batch(INPUTS, LABELS)))


# Saving


CHILD = """
    import sys
    import keras
    import numpy as np
    import keras_bahdanau

    folder, *names = sys.argv[1:]
    inputs = dict(np.load(f"{folder}/data.npz"))
    labels = inputs.pop("labels")
    results = {}
    for name in names:
        model = keras.saving.load_model(f"{folder}/{name}.keras")
        results[f"{name} class"] = type(model).__name__
        results[f"{name} logits"] = keras.ops.convert_to_numpy(model(inputs, training=False))
        for i, variable in enumerate(model.optimizer.variables):
            results[f"{name} optimizer {i}"] = keras.ops.convert_to_numpy(variable)
        if name == "rnnsearch":
            search = keras_bahdanau.BeamSearch(3, 0.6)
            found = model.generate(inputs["source"][:4], search=search, max_length=7)
            results |= found._asdict()
            losses = [float(model.train_on_batch(inputs, labels)) for _ in range(3)]
            results["losses"] = losses
    np.savez(f"{folder}/results.npz", **results)
"""


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """What a process that imports Keras and this package alone gets from the saved models."""
    folder = tmp_path_factory.mktemp("saved")
    np.savez(folder / "data.npz", **INPUTS, labels=LABELS)
    for name in MODELS:
        trained(name)[0].save(folder / f"{name}.keras")
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), *MODELS],
        check=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    return folder, dict(np.load(folder / "results.npz"))


@every_model
def test_a_saved_model_does_the_same_in_a_new_process(name, reloaded):
    _, results = reloaded
    model, _ = trained(name)
    assert results[f"{name} class"] == type(model).__name__
    logits = ops.convert_to_numpy(model(INPUTS, training=False))
    np.testing.assert_allclose(results[f"{name} logits"], logits, rtol=1e-4, atol=1e-5)
    if name == "rnnsearch":
        for field, value in translations(name)._asdict().items():
            np.testing.assert_allclose(results[field], value, rtol=1e-4, atol=1e-5)


@every_model
def test_the_optimizer_is_saved_too(name, reloaded):
    _, results = reloaded
    variables = trained(name)[0].optimizer.variables
    assert int(variables[0]) == 4 * 2
    for i, variable in enumerate(variables):
        value = ops.convert_to_numpy(variable)
        np.testing.assert_allclose(results[f"{name} optimizer {i}"], value, rtol=1e-6)


def test_training_goes_on_as_if_it_had_not_been_saved(reloaded):
    folder, results = reloaded
    model = keras.saving.load_model(folder / "rnnsearch.keras")
    losses = [float(model.train_on_batch(INPUTS, LABELS)) for _ in range(3)]
    np.testing.assert_allclose(results["losses"], losses, rtol=1e-4)
    assert losses[2] < losses[0] < trained("rnnsearch")[1][-1]


@every_model
def test_config_round_trip(name):
    model = MODELS[name]()
    again = type(model).from_config(model.get_config())
    assert again.get_config() == model.get_config()
    again.build()
    model.build()
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]


@pytest.mark.parametrize("name", ["rnnsearch", "rnnencdec"])
def test_a_config_keeps_how_the_model_is_trained(name):
    sampling = ScheduledSampling("linear", k=0.9, slope=0.001)
    model = MODELS[name](scheduled_sampling=sampling, guided_alignment=0.25)
    again = type(model).from_config(model.get_config())
    assert again.get_config() == model.get_config()
    assert again.scheduled_sampling.get_config() == sampling.get_config()
    assert again.guided_alignment == 0.25


# Generation


def test_greedy_takes_the_likeliest_token_of_the_teacher_forced_model():
    model, _ = trained("rnnsearch")
    found = model.generate(SOURCE, search=GreedySearch(), max_length=LENGTH)
    log_probs, _ = teacher_forced(model, SOURCE, found.tokens)
    for tokens, length, score, rows in zip(
        found.tokens[:, 0], found.lengths[:, 0], found.scores[:, 0], log_probs[:, 0], strict=True
    ):
        picked = rows[np.arange(length), tokens[:length]]
        np.testing.assert_allclose(picked, rows[:length].max(axis=-1), atol=1e-4)
        np.testing.assert_allclose(picked.sum(), score, rtol=1e-4, atol=1e-4)
        assert length == LENGTH or tokens[length - 1] == EOS
        assert EOS not in tokens[: length - 1] and not tokens[length:].any()


@every_model
def test_padding_and_the_rest_of_the_batch_change_nothing(name):
    found = translations(name)
    alone = trained(name)[0].generate(
        np.pad(SOURCE[1:2], ((0, 0), (0, 7))), search=BEAM, max_length=LENGTH
    )
    longest = alone.tokens.shape[2]
    np.testing.assert_array_equal(found.tokens[1:2, :, :longest], alone.tokens)
    np.testing.assert_array_equal(found.lengths[1:2], alone.lengths)
    np.testing.assert_allclose(found.scores[1:2], alone.scores, rtol=1e-4)
    width = SOURCE.shape[1]
    np.testing.assert_allclose(
        found.alignments[1:2, :, :longest], alone.alignments[..., :width], atol=1e-5
    )
    assert alone.alignments.shape[-1] == width + 7 and not alone.alignments[..., width:].any()


def test_takes_lists_of_ids():
    rows = [[int(i) for i in row if i != PAD] for row in SOURCE]
    found = trained("rnnsearch")[0].generate(rows, search=BEAM, max_length=LENGTH)
    for value, expected in zip(found, translations("rnnsearch"), strict=True):
        np.testing.assert_array_equal(value, expected)


def test_the_fixed_context_is_the_last_word():
    found = translations("rnnencdec")
    assert trained("rnnencdec")[0].decoder.attention.width == SIZES["units"]
    for b, row in enumerate(SOURCE):
        last = np.flatnonzero(row)[-1]
        for alignment, length in zip(found.alignments[b], found.lengths[b], strict=True):
            expected = np.zeros_like(alignment)
            expected[:length, last] = 1.0
            np.testing.assert_array_equal(alignment, expected)


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
def test_refuses_a_source_it_cannot_read(source):
    with pytest.raises(ValueError, match="`source`"):
        trained("rnnsearch")[0].generate(source)


@pytest.mark.parametrize("max_length", [0, -1, 2.5, None])
def test_refuses_to_generate_no_tokens(max_length):
    with pytest.raises(ValueError, match="`max_length` must be a positive integer"):
        trained("rnnsearch")[0].generate(SOURCE, max_length=max_length)


# Making models


class Projection(keras.layers.Layer):
    """An encoder that looks at each word alone."""

    def build(self, inputs_shape):
        self.kernel = self.add_weight(shape=(inputs_shape[-1], 6), name="kernel")

    def call(self, inputs, mask=None, training=None):
        return ops.matmul(inputs, self.kernel)


def test_an_encoder_may_be_built_already():
    encoder = Projection()
    encoder.build((None, None, 5))
    decoder = AttentiveDecoder(keras.layers.SimpleRNNCell(4), BahdanauAttention(3))
    model = Seq2Seq(*VOCABULARIES, 5, encoder=encoder, decoder=decoder, bridge="zero")
    model.build()
    assert len(encoder.weights) == 1 and model.count_params() > 0


def of_encoder(encoder, **arguments):
    decoder = AttentiveDecoder(keras.layers.SimpleRNNCell(4), BahdanauAttention(3))
    return Seq2Seq(*VOCABULARIES, 5, encoder=encoder, decoder=decoder, **arguments)


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
def test_refuses_an_encoder_that_returns_no_annotations(encoder):
    message = "`encoder` must return annotations .* write return_sequences=True and return_state=F"
    with pytest.raises(ValueError, match=message):
        of_encoder(encoder, bridge="last")


@pytest.mark.parametrize(
    "encoder",
    [
        GRUS(),
        keras.Sequential([GRUS()]),
        keras.layers.Bidirectional(GRUS(), merge_mode="sum"),
        keras.Sequential([GRUS(), keras.layers.Dropout(0.1)]),
        keras.Sequential([keras.layers.Bidirectional(GRUS()), keras.Sequential([GRUS()])]),
    ],
    ids=["one way", "stacked", "sum", "something after it", "below it another"],
)
def test_refuses_a_bridge_from_a_direction_that_is_not_there(encoder):
    with pytest.raises(ValueError, match=r'`bridge` must not be "backward_first" .* bridge="last"'):
        of_encoder(encoder)
    assert of_encoder(encoder, bridge="last").bridge.source == "last"


def test_an_encoder_is_no_cell():
    with pytest.raises(ValueError, match=r"`encoder` must be a layer .* write keras\.layers\.RNN"):
        of_encoder(keras.layers.GRUCell(4))


def test_takes_the_backward_half_of_keras_own_encoder():
    assert of_encoder(keras.layers.Bidirectional(GRUS())).bridge.source == "backward_first"


class Summing(keras.layers.Layer):
    def call(self, inputs, mask=None, training=None):
        return ops.sum(inputs, axis=1)


def test_refuses_a_layer_of_ones_own_that_returns_no_annotations():
    message = (
        r"`encoder` must return annotations, one tensor \(batch, time, width\). Received: <Sum"
    )
    with pytest.raises(ValueError, match=message):
        of_encoder(Summing(), bridge="zero").build()


def test_an_encoder_may_take_no_mask():
    """It reads zeros for padding, so that an annotation is the same however long the padding is."""
    model = of_encoder(keras.layers.Conv1D(6, 3, padding="same"), bridge="last")
    model.build()
    short, _, state = model.encode(ops.convert_to_tensor([[5, 6, 3]]))
    padded, _, same = model.encode(ops.convert_to_tensor([[5, 6, 3, 0, 0]]))
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (short, padded[:, :3])), atol=1e-6)
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (state[0], same[0])), atol=1e-6)


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
    ],
)
def test_refuses_parts_that_are_none(name, value, message):
    decoder = AttentiveDecoder(keras.layers.GRUCell(4), BahdanauAttention(3))
    parts = {"encoder": BidirectionalEncoder(4), "decoder": decoder, name: value}
    with pytest.raises(ValueError, match=f"Argument `{name}` {message}"):
        Seq2Seq(*VOCABULARIES, 5, **parts)


def test_a_bridge_must_make_states():
    model = of_encoder(BidirectionalEncoder(4), bridge=keras.layers.Dense(4))
    with pytest.raises(ValueError, match=r"must hold a tensor for each state.* of sizes \[4\]"):
        model({"source": np.array([[5, 3]]), "target": np.array([[2, 5]])})


@pytest.mark.parametrize("kind", [list, dict])
def test_refuses_inputs_without_both_sides(kind):
    model, ids = of_encoder(BidirectionalEncoder(4)), np.array([[5, 3]])
    inputs = {"source": ids} if kind is dict else [ids, ids]
    with pytest.raises(ValueError, match='`inputs` must be a dict with the ids "source" and "tar'):
        model(inputs)


def test_tied_embeddings_share_one_matrix():
    model, _ = trained("plain_gru")
    assert model.output_layer is None
    shapes = [tuple(w.shape) for w in model.trainable_weights]
    assert shapes.count((TARGET_VOCABULARY, 9)) == 1
    states = ops.convert_to_tensor(np.eye(9, dtype="float32"))
    np.testing.assert_allclose(
        ops.convert_to_numpy(model._logits(states)),
        ops.convert_to_numpy(model.target_embedding.embeddings).T,
        rtol=1e-5,
    )


def test_joined_embeddings_stand_behind_the_annotations():
    model = plain_gru()
    model.build()
    joined, _, cell_state = model.encode(ops.convert_to_tensor(SOURCE))
    model.join_embeddings = False
    annotations, _, same_state = model.encode(ops.convert_to_tensor(SOURCE))
    embedded = model.source_embedding(SOURCE)
    for found, expected in ((joined[..., :11], annotations), (joined[..., 11:], embedded)):
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (found, expected)))
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (cell_state[0], same_state[0])))


def test_embeddings_are_one_long_at_first():
    """Of M normal numbers of variance 1 / M the squares sum to 1, with an sd of sqrt(2 / M)."""
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


def test_refuses_to_tie_embeddings_of_another_width():
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
def test_refuses_sizes_that_are_none(name, value):
    arguments = {
        "source_vocabulary_size": 10,
        "target_vocabulary_size": 10,
        **SIZES,
        name: value,
    }
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer"):
        RNNSearch(**arguments)


@pytest.mark.parametrize("name", ["rnnsearch", "stacked_lstm"])
def test_a_model_is_saved_with_its_frozen_parts(name, tmp_path):
    model = compile_to_copy(MODELS[name]())
    model.source_embedding.trainable = False
    model.encoder.forward_layers[0].trainable = False
    model.decoder.trainable = False
    model.decoder.readout.trainable = True
    model.train_on_batch(INPUTS, LABELS)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    trained = [weight.name for weight in model.weights if weight.trainable]
    assert [weight.name for weight in again.weights if weight.trainable] == trained
    frozen = again.source_embedding, again.encoder.forward_layers[0], again.decoder
    assert not any(part.trainable for part in frozen)
    assert int(again.optimizer.iterations) == 1
    again.decoder.trainable = True
    assert all(weight.trainable for weight in again.decoder.weights)


def test_a_config_may_leave_out_what_was_told():
    for name in ("rnnsearch", "stacked_lstm"):
        config = MODELS[name]().get_config()
        assert config.pop("told") == []
        assert len(type(MODELS[name]()).from_config(config)._made()) >= 3


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # in Keras's own tied layer, on torch
@pytest.mark.parametrize(
    ("name", "mode"), [("rnnsearch", "int8"), ("plain_gru", "int8"), ("plain_gru", "int4")]
)
def test_a_quantized_model_is_saved(name, mode, tmp_path):
    model = MODELS[name]()
    model.build()
    model.quantize(mode)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [weight.dtype for weight in again.weights] == [weight.dtype for weight in model.weights]
    logits = (ops.convert_to_numpy(one(INPUTS, training=False)) for one in (model, again))
    np.testing.assert_array_equal(*logits)


def test_a_model_with_lora_is_saved(tmp_path):
    model = MODELS["rnnsearch"]()
    model.build()
    model.source_embedding.enable_lora(2)
    model.output_layer.enable_lora(3)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    names = [[weight.name for weight in one.trainable_weights] for one in (model, again)]
    assert names[0] == names[1] and "lora_embeddings_a" in names[0]
    assert again.output_layer.lora_rank == 3
    logits = (ops.convert_to_numpy(one(INPUTS, training=False)) for one in (model, again))
    np.testing.assert_allclose(*logits, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*does not support masking")  # as Keras says of the layer
@pytest.mark.parametrize("of_class", [keras.Sequential, lambda layers: functional(*layers)])
def test_an_encoder_that_is_a_model_without_a_mask_reads_no_padding(of_class):
    inner = keras.layers.Conv1D(6, 3, padding="same", bias_initializer="ones")
    model = of_encoder(of_class([inner]), bridge="mean")
    logits = []
    for more in (0, 4):
        source = np.pad(INPUTS["source"], [(0, 0), (0, more)])
        logits.append(ops.convert_to_numpy(model({**INPUTS, "source": source})))
    np.testing.assert_allclose(*logits, atol=1e-5)


def functional(layer):
    inputs = keras.Input((None, 5))
    return keras.Model(inputs, layer(inputs))


def model_of(attention, **options):
    keras.utils.set_random_seed(0)
    decoder = AttentiveDecoder(keras.layers.GRUCell(8), attention)
    size = 1 + max(INPUTS["source"].max(), INPUTS["target"].max(), LABELS.max())
    return Seq2Seq(int(size), int(size), 8, BidirectionalEncoder(4), decoder, **options)


def test_padding_of_the_target_costs_no_coverage():
    model = model_of(CoverageAttention(6, coverage_loss=1.0))
    losses = []
    for more in (0, 5):
        model(
            {"source": INPUTS["source"], "target": np.pad(INPUTS["target"], [(0, 0), (0, more)])},
            training=True,
        )
        losses.append(ops.convert_to_numpy(model.losses[0]).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0] > 0


def test_the_guide_counts_as_often_as_it_is_told():
    guide = np.ones((*LABELS.shape, INPUTS["source"].shape[1]), "float32")
    models = [model_of(BahdanauAttention(6), guided_alignment=factor) for factor in (1.0, 2.5)]
    for model in models:
        model.build()
    models[1].set_weights(models[0].get_weights())
    losses = []
    for model in models:
        model({**INPUTS, "alignment": guide}, training=True)
        losses.append(ops.convert_to_numpy(model.losses[0]).item())
    assert losses[1] == pytest.approx(2.5 * losses[0], rel=1e-5)


def test_each_share_is_dropped_from_its_own():
    model = model_of(BahdanauAttention(6), dropout=(0.1, 0.2, 0.3))
    layers = model.embedding_dropout, model.annotation_dropout, model.readout_dropout
    assert [layer.rate for layer in layers] == [0.1, 0.2, 0.3]
