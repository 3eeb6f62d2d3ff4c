"""Encoders, bridges, embeddings and sizes that a Seq2Seq accepts or refuses."""

import functools

import keras
import numpy as np
import pytest
from copy_task import copy_task
from keras import ops
from layer_checks import WIDE_POLICIES, assert_close, dtype_policy
from models import SIZES, VOCABULARIES, model_of, plain_gru

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    RNNSearch,
    Seq2Seq,
    TokenCrossentropy,
)
from keras_bahdanau.layers import StateBridge
from keras_bahdanau_runtime.ids import EOS

INPUTS, LABELS = copy_task(rows=32)
SOURCE = INPUTS["source"][:4]


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


class Projection(keras.layers.Layer):
    """An encoder that projects each word without its context."""

    def build(self, inputs_shape):
        self.kernel = self.add_weight(shape=(inputs_shape[-1], 6), name="kernel")

    def call(self, inputs, mask=None, training=None):
        return ops.matmul(inputs, self.kernel)


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


@pytest.mark.parametrize("encoder", [GRUS(), BidirectionalEncoder(4), keras.layers.Dense(4)])
def test_a_state_bridge_needs_an_encoder_with_states(encoder):
    with pytest.raises(ValueError, match=r"`encoder` must return annotations.* StateBridge"):
        model_of(encoder, bridge=StateBridge()).build()


def test_a_source_may_be_read_without_its_end_token():
    model = model_of(BidirectionalEncoder(4), read_source_end=False)
    restored = Seq2Seq.from_config(model.get_config())
    source = np.array([[5, 6, EOS, 0], [5, 6, 7, EOS]])
    for each in (model, restored):
        each.build()
        annotations, mask, _ = each.encode(source)
        assert_close(mask, source > EOS, 0)
        expected, _, _ = each.encode(np.where(source == EOS, 0, source))
        assert_close(annotations, expected, 0)
    # An end token inside of a source is read, so that only the right of the mask is padding.
    source = np.array([[5, EOS, 6, EOS, 0]])
    annotations, mask, _ = model.encode(source, right_padded=True)
    assert ops.convert_to_numpy(mask)[0].tolist() == [True, True, True, False, False]
    assert_close(annotations, model.encode(source)[0], 1e-6)


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
        ("source_embedding_dim", 0, "must be a positive integer.*0"),
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
    with pytest.raises(ValueError, match=r"must have one tensor for each state.* with sizes \[4\]"):
        model({"source": np.array([[5, 3]]), "target": np.array([[2, 5]])})


@pytest.mark.parametrize("kind", [list, dict])
def test_inputs_without_source_and_target_are_refused(kind):
    model, ids = model_of(BidirectionalEncoder(4)), np.array([[5, 3]])
    inputs = {"source": ids} if kind is dict else [ids, ids]
    with pytest.raises(ValueError, match='`inputs` must be a dict with the ids "source" and "tar'):
        model(inputs)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ((4,), (2, 3), r"`source` of Seq2Seq must be \(batch, time\)"),
        ((2, 4), (3,), r"`target` of Seq2Seq must be \(2, time\)"),
        ((3, 4), (2, 3), r"`target` of Seq2Seq must be \(3, time\)"),
        ((2, 0), (2, 3), "`source` of Seq2Seq must have at least one position"),
        ((2, 4), (2, 0), "`target` of Seq2Seq must have at least one position"),
    ],
)
def test_ids_of_a_wrong_shape_are_refused(source, target, message):
    inputs = {"source": np.ones(source, "int32"), "target": np.ones(target, "int32")}
    with pytest.raises(ValueError, match=message):
        model_of(BidirectionalEncoder(4))(inputs)


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
    sizes = SIZES | {"embedding_dim": 128, "source_embedding_dim": 256}
    model = RNNSearch(400, 500, **sizes, initializer=None)
    model.build()
    first, second = (
        ops.convert_to_numpy(layer.embeddings)
        for layer in (model.source_embedding, model.target_embedding)
    )
    for embeddings in (first, second):
        squares = (embeddings**2).sum(-1)
        assert abs(squares.mean() - 1) < 0.05 and squares.std() < 0.25
    assert (first[:, :128] != second[:400]).all()


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
