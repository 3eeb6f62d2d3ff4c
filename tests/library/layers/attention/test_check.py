"""`check_attention` accepts every mechanism, and names the fault of each wrong one."""

import itertools
import re
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import array, numpy
from mechanisms import MECHANISMS

from keras_bahdanau import BahdanauAttention, LuongAttention, check_attention
from keras_bahdanau.layers import (
    Attention,
    HistoryAttention,
    LocationSensitiveAttention,
    Memory,
    MultiSourceAttention,
    ScoredAttention,
    masked_softmax,
    register_named_tuple,
)

register = keras.saving.register_keras_serializable(package="test_check")


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_passes(name):
    check_attention(MECHANISMS[name].make())


def test_mechanisms_of_certain_widths_pass():
    check_attention(LuongAttention("dot"), query_width=8)
    attentions = [LocationSensitiveAttention(4, filters=2, kernel_size=3), LuongAttention()]
    check_attention(MultiSourceAttention(attentions), value_width=[5, 3])


@register
class Window(ScoredAttention):
    """A right mechanism: a window around a position that is predicted from the query."""

    def __init__(self, width=2.0, **kwargs):
        super().__init__(**kwargs)
        self.width = width

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.kernel = self.add_weight(shape=(query_shape[-1], 1), name="kernel")

    def lengths(self, memory):
        return self.source_lengths(memory)

    def scores(self, query, memory, chunked=False):
        shares = ops.sigmoid(ops.matmul(ops.cast(query, "float32"), self.kernel))  # (B, G, 1)
        centers = ops.reshape(self.lengths(memory), (-1, 1, 1)) * ops.cast(shares, "float32")
        distances = ops.expand_dims(self.source_positions(memory), 1) - centers  # (B, G, Tx)
        return -ops.square(distances / self.width)

    def get_config(self):
        return {**super().get_config(), "width": self.width}


@register_named_tuple
class CheckedMemory(NamedTuple):
    """A memory with a tensor per source in addition to the fields of `Memory`."""

    keys: Any
    values: Any
    mask: Any = None
    dropout: Any = None
    shares: Any = None


@register
class Cursor(Attention):
    """A right mechanism with a state: a position that moves by an amount that a query predicts."""

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.kernel = self.add_weight(shape=(query_shape[-1], 1), name="kernel")

    def memory(self, values, key=None, mask=None, training=None, steps=1):
        values, key, mask = self.prepare_memory(values, key, mask)
        return CheckedMemory(key, values, mask)

    def initial_state(self, memory):
        return ops.zeros((ops.shape(memory.values)[0], 1), dtype="float32")

    def step(self, query, memory, state=(), training=None, t=None):
        queries = ops.cast(self.group_queries(query, memory), "float32")  # (B, G, N)
        moves = ops.cast(ops.softplus(ops.matmul(queries, self.kernel)), "float32")
        centers = ops.reshape(state, ops.shape(moves)) + moves  # (B, G, 1)
        distances = ops.expand_dims(self.source_positions(memory), 1) - centers
        mask = None if memory.mask is None else ops.expand_dims(memory.mask, 1)
        weights = self.normalize(-ops.square(distances), mask)
        context, weights = self.ungroup(self.average(weights, memory), weights, memory)
        return context, weights, self.next_state(ops.reshape(centers, ops.shape(state)))

    def normalize(self, scores, mask):
        return masked_softmax(scores, mask)

    def next_state(self, state):
        return state


@pytest.mark.parametrize("mechanism", [Window, Cursor])
def test_a_right_mechanism_of_a_subclass_passes(mechanism):
    check_attention(mechanism())


# --- Wrong mechanisms: the check that finds each of them, and what it says ------------------------


class WithoutSteps(Attention):
    pass


class WithOtherArguments(Cursor):
    def memory(self, values, mask=None):
        return super().memory(values, mask=mask)


class WithoutScores(ScoredAttention):
    pass


class WithoutFeatures(HistoryAttention):
    def initial_state(self, memory):
        return ops.zeros(ops.shape(memory.keys)[:2])


class WithoutBuildOfTheBase(Window):
    def build(self, query_shape, value_shape, key_shape=None):
        self.kernel = self.add_weight(shape=(query_shape[-1], 1), name="kernel")


class WithWrongAxes(Window):
    def scores(self, query, memory, chunked=False):
        return ops.transpose(super().scores(query, memory), (0, 2, 1))


class WithPaddedLength(Window):
    def lengths(self, memory):
        return ops.cast(ops.shape(memory.keys)[1], "float32")


class WithMaskedPositions(Window):
    def memory(self, values, key=None, mask=None, training=None, steps=1):
        values = ops.cast(values, self.compute_dtype)
        return Memory(values, values, mask)


class WithoutMask(Cursor):
    def normalize(self, scores, mask):
        return ops.softmax(scores)


class WithDivisionByTheSum(Cursor):
    def normalize(self, scores, mask):
        weights = ops.exp(scores)
        if mask is not None:
            weights = ops.where(mask, weights, 0.0)
        return weights / ops.sum(weights, axis=-1, keepdims=True)


class WithDivisionByLength(Window):
    def lengths(self, memory):
        lengths = self.source_lengths(memory)
        return lengths / (lengths / lengths)


class WithStepsOfTheirOwn(Window):
    def step(self, query, memory, state=(), training=None, t=None):
        context, weights, state = super().step(query, memory, state, training, t)
        return context + t, weights, state


class WithStateOfAnotherDtype(Cursor):
    def next_state(self, state):
        return ops.cast(state, "float16")


class WithoutGroups(Window):
    def step(self, query, memory, state=(), training=None, t=None):
        scores = self.scores(ops.expand_dims(query, 1), memory)
        weights = masked_softmax(scores, ops.expand_dims(memory.mask, 1))
        return ops.squeeze(self.average(weights, memory), 1), ops.squeeze(weights, 1), state


class WithOneCenterPerSource(Window):
    """Every query of a source has the center of the first one, in a step."""

    def step(self, query, memory, state=(), training=None, t=None):
        queries = self.group_queries(query, memory)
        queries = ops.broadcast_to(queries[:, :1], ops.shape(queries))
        return super().step(ops.reshape(queries, ops.shape(query)), memory, state)


class WithHalfScores(Window):
    def scores(self, query, memory, chunked=False):
        return ops.cast(super().scores(query, memory) * 1e7, self.compute_dtype) / 1e7


class WithHalfWeights(Cursor):
    def normalize(self, scores, mask):
        return ops.cast(masked_softmax(scores, mask), self.compute_dtype)


class WithoutConfig(Window):
    def get_config(self):
        return ScoredAttention.get_config(self)


class WithoutRegistration(Window):
    pass


class WithUntrackedWeight(Window):
    shifts = itertools.cycle([0.0, 5.0, 10.0, 15.0])  # of the layers that are built

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.shift = next(self.shifts)

    def scores(self, query, memory, chunked=False):
        return super().scores(query, memory) + self.shift * self.source_positions(memory)[:, None]


class WithUnusedWeight(Window):
    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.unused = self.add_weight(shape=(3,), name="unused_weight")


class WithRounding(Window):
    def scores(self, query, memory, chunked=False):
        return ops.round(super().scores(query, memory))


class WithRootOfZero(Window):
    def scores(self, query, memory, chunked=False):
        return -ops.sqrt(0.0 * super().scores(query, memory))


WRONG = {
    WithoutSteps: ("methods", r"no method `memory`. Define `memory\(values, key=None.*`step`"),
    WithOtherArguments: ("methods", r"arguments of `memory\(.*steps=1\)`, but is `memory\(self, v"),
    WithoutScores: ("methods", r"WithoutScores has no method `scores`. Define `scores\(query, mem"),
    WithoutFeatures: (
        "steps",
        r"WithoutFeatures has no method `features`. Define `features\(sta",
    ),
    WithoutBuildOfTheBase: ("call", r"begin with `super\(\).build\(query_shape"),
    WithWrongAxes: ("call", r"- call: \w+Error: .*"),
    WithPaddedLength: ("padding", r"3 more masked positions change the contexts by .*source_leng"),
    WithMaskedPositions: ("padding", r"NaN at masked positions changes .* `prepare_memory`"),
    WithoutMask: ("padding", r"masked positions have weights of up to 0.*`masked_softmax`"),
    WithDivisionByTheSum: ("padding", r"fully masked source.*Use `masked_softmax`"),
    WithDivisionByLength: ("gradients", r"gradient of .* has NaN .* whose length is 0"),
    WithStepsOfTheirOwn: ("steps", r"contexts of `step` differ from those of a call by 2\. "),
    WithStateOfAnotherDtype: ("steps", r"the state must keep .*\(3, 1\), 'float16'\)\] after"),
    WithoutGroups: ("beam", r"."),
    WithOneCenterPerSource: ("beam", r"2 queries per row .* contexts of `step` differ .*`group_qu"),
    WithHalfScores: ("dtypes", r"under 'mixed_float16' the contexts (have NaN|differ from)"),
    WithHalfWeights: ("dtypes", r"'mixed_float16' the weights of `step` must be float32, but are"),
    WithoutConfig: ("saving", r"`get_config` lacks `width`, so a loaded layer"),
    WithoutRegistration: ("saving", r"not registered. Write @keras.saving.register_keras_serial"),
    WithUntrackedWeight: ("dtypes saving", r"contexts of a loaded model differ by .* `add_weight`"),
    WithUnusedWeight: ("gradients", r"no gradient by the weights \['.*unused_weight'\]"),
    WithRounding: ("gradients", r"no gradient by the weights \['.*kernel'\]"),
    WithRootOfZero: ("gradients", r"gradient of .* has NaN or infinity"),
}
for wrong in WRONG:
    if wrong is not WithoutRegistration:
        register(wrong)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_mechanism_is_named_by_its_fault(wrong):
    layer = wrong(4) if wrong is WithoutFeatures else wrong()
    names, message = WRONG[wrong]
    with pytest.raises(ValueError, match=f"{wrong.__name__} fails `check_attention`") as raised:
        check_attention(layer)
    lines = str(raised.value).splitlines()[1:]
    assert {line.removeprefix("- ").partition(":")[0] for line in lines} == {*names.split()}
    assert re.search(message, str(raised.value), re.S)


def test_a_state_that_is_stored_in_the_layer_is_named():
    @register
    class WithStateInTheLayer(Cursor):
        move = 0.0

        def next_state(self, state):
            self.move = 2.0 - self.move
            return state + self.move

    with pytest.raises(ValueError, match="- steps: the same steps give other contexts when they"):
        check_attention(WithStateInTheLayer())


def test_all_faults_are_listed():
    @register
    class TwiceWrong(WithPaddedLength):
        def build(self, query_shape, value_shape, key_shape=None):
            super().build(query_shape, value_shape, key_shape)
            self.unused = self.add_weight(shape=(3,), name="unused_weight")

    with pytest.raises(ValueError, match=r"- padding: .*\n- gradients: .*unused_weight"):
        check_attention(TwiceWrong())


def test_a_class_of_the_script_is_refused(monkeypatch):
    monkeypatch.setattr(Window, "__module__", "__main__")
    with pytest.raises(ValueError, match="- saving: the class is defined in the script or"):
        check_attention(Window())


def test_a_layer_stays_as_it_is(rng):
    attention = BahdanauAttention(4)
    check_attention(attention)
    assert not attention.built
    query, values = array(rng, 2, 3), array(rng, 2, 5, 7)
    expected = numpy(attention(query, values))
    check_attention(attention)
    np.testing.assert_array_equal(numpy(attention(query, values)), expected)


def test_another_layer_is_refused():
    with pytest.raises(ValueError, match="`attention` must be an Attention, such as Bahdanau"):
        check_attention(keras.layers.Dense(3))
