import math

import keras
import numpy as np
import pytest
from copy_task import compile_to_copy, copy_task
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from layer_checks import (
    POLICIES,
    assert_close,
    assert_config_round_trip,
    dtype_policy,
    numpy,
)

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    DeepOutput,
    ScheduledSampling,
    Seq2Seq,
    TokenCrossentropy,
)

INPUTS, LABELS = copy_task(rows=8)
SOURCE, TARGET = INPUTS["source"], INPUTS["target"]


# --- Schedules ------------------------------------------------------------------------------------

SCHEDULES = {
    "constant": (dict(schedule="constant", k=0.3), lambda i: 0.3),
    "linear": (
        dict(schedule="linear", k=0.9, slope=0.01, floor=0.2),
        lambda i: max(0.2, 0.9 - 0.01 * i),
    ),
    "exponential": (
        dict(schedule="exponential", k=0.99, floor=0.1),
        lambda i: max(0.1, 0.99**i),
    ),
    "inverse_sigmoid": (
        dict(schedule="inverse_sigmoid", k=20.0, floor=0.05),
        lambda i: max(0.05, 20.0 / (20.0 + math.exp(i / 20.0))),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_the_papers(name):
    arguments, formula = SCHEDULES[name]
    sampling = ScheduledSampling(**arguments)
    for step in (0, 1, 7, 60, 75, 400, 10_000):
        expected = formula(min(step, 5_000))  # the formula itself overflows beyond
        np.testing.assert_allclose(float(sampling.truth(step)), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(schedule="cosine"), "`schedule` must be one of .* Received: 'cosine'"),
        (dict(schedule="constant", k=1.5), "`k` must be .* of at least 0 and at most 1. Rec.*1.5"),
        (dict(schedule="constant", k=-0.1), "`k` must be a number of at least 0 and at most 1"),
        (dict(schedule="linear", k=2.0), "`k` must be a number of at least 0 and at most 1"),
        (dict(schedule="exponential", k=1.0), "`k` must be a number above 0 and below 1"),
        (dict(schedule="exponential", k=0.0), "`k` must be a number above 0 and below 1"),
        (dict(schedule="inverse_sigmoid", k=0.5), "`k` must be a number of at least 1"),
        (dict(k=float("nan")), "`k` must be a number of at least 1"),
        (dict(k=None), "`k` must be a number of at least 1. Received: None"),
        (dict(slope=-1.0), "`slope` must be a number of at least 0. Received: -1.0"),
        (dict(floor=1.5), "`floor` must be a number of at least 0 and at most 1. Received: 1.5"),
    ],
)
def test_numbers_must_be_in_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScheduledSampling(**arguments)


# --- Choices --------------------------------------------------------------------------------------


def test_choices_are_as_frequent_as_the_schedule_says():
    sampling = ScheduledSampling("constant", k=0.7, seed=1)
    ids = np.ones((200, 51), "int32")
    own, numbers = numpy(sampling(ids, training=True))
    assert own.dtype == bool and numbers.dtype == np.float32
    assert not own[:, 0].any()  # the first place always reads the true token
    # Of 10000 independent choices; four standard deviations.
    assert abs(own[:, 1:].mean() - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 10_000)
    for part in (numbers, numbers[own]):  # of all places, and where they are used
        counts, _ = np.histogram(part, bins=16, range=(0, 1))
        assert counts.sum() == part.size
        expected = part.size / 16  # chi-square of 16 equal intervals, 15 degrees
        assert ((counts - expected) ** 2 / expected).sum() < 50
    again, _ = numpy(sampling(ids, training=True))
    assert (again != own).any()


def test_nothing_is_chosen_outside_of_training():
    sampling = ScheduledSampling("constant", k=0.0)
    own, numbers = numpy(sampling(TARGET))
    assert own.shape == numbers.shape == TARGET.shape
    assert own.dtype == bool and not own.any()
    assert float(sampling.batches) == 0.0
    numpy(sampling(TARGET, training=True))
    assert float(sampling.batches) == 1.0


def test_the_probability_is_that_of_the_batch():
    sampling = ScheduledSampling("linear", k=1.0, slope=0.5)
    ids = np.ones((50, 41), "int32")
    shares = [numpy(sampling(ids, training=True)[0])[:, 1:].mean() for _ in range(4)]
    assert shares[0] == 0.0 and abs(shares[1] - 0.5) < 0.05 and shares[2:] == [1.0, 1.0]


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=6).flatmap(
        lambda shares: st.tuples(st.just(shares), st.floats(0.0, 0.999))
    )
)
def test_a_token_is_drawn_by_its_share(drawn):
    shares, number = drawn
    ends = np.cumsum(shares) / np.sum(shares)
    token = int(np.searchsorted(ends, number, side="right"))
    starts = ends - np.array(shares) / np.sum(shares)
    if min(abs(number - ends[token]), abs(number - starts[token])) < 1e-5:
        return  # on a border, where rounding may decide
    logits = np.log(np.array([shares], "float32"))
    assert int(ScheduledSampling().pick(logits, np.array([number], "float32"))[0]) == token


def test_every_third_of_the_line_goes_to_its_token():
    shares = np.array([0.5, 0.0, 0.3, 0.2])
    numbers = ((np.arange(1000) + 0.5) / 1000).astype("float32")
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(np.tile(shares, (1000, 1))), -1e9).astype("float32")
    ids = numpy(ScheduledSampling().pick(logits, numbers))
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(np.bincount(ids, minlength=4), [500, 0, 300, 200])


def test_the_ends_of_the_line():
    logits = np.zeros((2, 7), "float32")
    ids = ScheduledSampling().pick(
        logits, np.array([0.0, np.nextafter(1.0, 0.0, dtype="float32")], "float32")
    )
    assert numpy(ids).tolist() == [0, 6]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_draws_from_a_large_vocabulary(dtype):
    # The numbers stay float32: as many different tokens come as with logits of float32.
    numbers = ((np.arange(2000) + 0.5) / 2000).astype("float32")
    logits = ops.zeros((2000, 2000), dtype=dtype)
    assert len(np.unique(numpy(ScheduledSampling().pick(logits, numbers)))) > 1990


def test_without_sampling_the_likeliest_is_read():
    logits = np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]], "float32")
    ids = ScheduledSampling(sample=False).pick(logits, np.full(2, 0.99, "float32"))
    assert numpy(ids).tolist() == [1, 0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_config_round_trip(name):
    assert_config_round_trip(ScheduledSampling(**SCHEDULES[name][0], sample=False, seed=3))


# --- In a model -----------------------------------------------------------------------------------


def translator(sampling, input_feeding=False, tie_embeddings=False):
    return Seq2Seq(
        12,
        12,
        embedding_dim=8,
        encoder=BidirectionalEncoder(6),
        decoder=AttentiveDecoder(
            keras.layers.GRUCell(8),
            BahdanauAttention(7),
            DeepOutput(8, "tanh"),
            input_feeding=input_feeding,
        ),
        scheduled_sampling=sampling,
        tie_embeddings=tie_embeddings,
    )


def by_hand(model, choose):
    """Logits where each step reads the tokens of `choose(i, logits of the last step)`."""
    annotations, mask, cell_state = model.encode(ops.convert_to_tensor(SOURCE))
    memory = model.decoder.memory(annotations, mask)
    state = model.decoder.initial_state(memory, cell_state)
    logits = []
    for i in range(TARGET.shape[1]):
        tokens = ops.convert_to_tensor(choose(i, logits).astype("int32"))
        output, state, _ = model.decoder.step(model.target_embedding(tokens), state, memory)
        logits.append(numpy(model._logits(output)))
    return np.stack(logits, axis=1)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_the_truth_alone_is_teacher_forcing(input_feeding):
    model = translator(ScheduledSampling("constant", k=1.0), input_feeding)
    plain = numpy(model(INPUTS, training=False))
    assert_close(model(INPUTS, training=True), plain, 1e-6)
    assert_close(plain, by_hand(model, lambda i, _: TARGET[:, i]), 1e-5)


@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_own_tokens_alone_are_a_greedy_decoder(input_feeding, tie_embeddings):
    sampling = ScheduledSampling("constant", k=0.0, sample=False)
    model = translator(sampling, input_feeding, tie_embeddings)
    model.build()
    rng = np.random.default_rng(3)
    model.set_weights([w + rng.normal(scale=0.3, size=w.shape) for w in model.get_weights()])

    def choose(i, logits):
        return logits[-1].argmax(axis=-1) if i else TARGET[:, 0]

    expected = by_hand(model, choose)
    assert_close(model(INPUTS, training=True), expected, 1e-5)
    # Outside of training the truth is read.
    assert np.abs(numpy(model(INPUTS)) - expected).max() > 1e-3


def test_places_are_mixed_as_chosen():
    own, numbers = numpy(ScheduledSampling("constant", k=0.5, seed=5)(TARGET, training=True))
    assert own.any() and not own[:, 1:].all()

    class Chosen(ScheduledSampling):
        def call(self, ids, training=None):
            return ops.convert_to_tensor(own), ops.convert_to_tensor(numbers)

    model = translator(Chosen(sample=False))

    def choose(i, logits):
        return np.where(own[:, i], logits[-1].argmax(axis=-1), TARGET[:, i]) if i else TARGET[:, 0]

    assert_close(model(INPUTS, training=True), by_hand(model, choose), 1e-5)


def test_counts_batches_in_fit_and_goes_on_after_saving(tmp_path):
    model = compile_to_copy(translator(ScheduledSampling("inverse_sigmoid", k=2.0)))
    history = model.fit(INPUTS, LABELS, epochs=3, batch_size=4, verbose=0)
    assert float(model.scheduled_sampling.batches) == 6.0
    assert np.isfinite(history.history["loss"]).all()
    expected = model.predict(INPUTS, batch_size=4, verbose=0)
    assert float(model.scheduled_sampling.batches) == 6.0
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert float(loaded.scheduled_sampling.batches) == 6.0
    assert loaded.scheduled_sampling.get_config() == model.scheduled_sampling.get_config()
    assert_close(loaded.predict(INPUTS, batch_size=4, verbose=0), expected, 1e-6)
    loaded(INPUTS, training=True)
    assert float(loaded.scheduled_sampling.batches) == 7.0


@pytest.mark.parametrize("policy", POLICIES)
def test_counts_on_in_half_precision(policy):
    with dtype_policy(policy):
        sampling = ScheduledSampling("inverse_sigmoid", k=2.0)
    sampling.batches.assign(4096.0)
    for _ in range(3):
        sampling(np.ones((2, 3), "int32"), training=True)
    assert float(sampling.batches) == 4099.0


@pytest.mark.skipif(keras.config.backend() == "torch", reason="torch has no XLA")
def test_learns_under_xla():
    model = translator(ScheduledSampling("constant", k=0.5), input_feeding=True)
    model.compile(keras.optimizers.Adam(0.02), loss=TokenCrossentropy(), jit_compile=True)
    history = model.fit(INPUTS, LABELS, epochs=8, batch_size=8, verbose=0)
    assert history.history["loss"][-1] < 0.95 * history.history["loss"][0]
    count = len(model.trainable_variables)
    moments = [numpy(v) for v in model.optimizer.variables[2:]]
    assert len(moments) == 2 * count and all(moment.any() for moment in moments)


@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_precision(policy):
    with dtype_policy(policy):
        model = translator(ScheduledSampling("constant", k=0.3))
        model.compile("adam", TokenCrossentropy(), run_eagerly=True)  # two steps are soon done
        losses = [float(model.train_on_batch(INPUTS, LABELS)) for _ in range(2)]
    assert np.isfinite(losses).all()
