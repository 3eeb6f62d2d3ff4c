import math

import keras
import numpy as np
import pytest
from copy_task import compile_to_copy, copy_task
from keras import ops
from layer_checks import POLICIES, assert_close, assert_config_round_trip, dtype_policy, numpy

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    BidirectionalEncoder,
    DeepOutput,
    Seq2Seq,
    TokenCrossentropy,
)
from keras_bahdanau.layers import ScheduledSampling
from keras_bahdanau_runtime.ids import PAD

INPUTS, LABELS = copy_task(rows=8)
SOURCE, TARGET = INPUTS["source"], INPUTS["target"]
REAL = TARGET != PAD


# --- Schedules ------------------------------------------------------------------------------------

SCHEDULES = {
    "constant": (dict(schedule="constant", k=0.3), lambda i: 0.3),
    "linear": (
        dict(schedule="linear", k=0.9, slope=0.01, floor=0.2),
        lambda i: max(0.2, 0.9 - 0.01 * i),
    ),
    "exponential": (dict(schedule="exponential", k=0.99, floor=0.1), lambda i: max(0.1, 0.99**i)),
    "inverse_sigmoid": (
        dict(schedule="inverse_sigmoid", k=20.0, floor=0.05),
        lambda i: max(0.05, 20.0 / (20.0 + math.exp(i / 20.0))),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_have_the_probabilities_of_the_paper(name):
    arguments, formula = SCHEDULES[name]
    sampling = ScheduledSampling(**arguments)
    for step in (0, 1, 7, 60, 75, 400, 10_000):
        expected = formula(min(step, 5_000))  # exp overflows for larger steps
        np.testing.assert_allclose(
            float(sampling.true_token_probability(step)), expected, rtol=1e-5
        )


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
def test_options_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScheduledSampling(**arguments)


# --- Choices --------------------------------------------------------------------------------------


def test_choices_are_random_with_the_frequency_of_the_schedule():
    sampling = ScheduledSampling("constant", k=0.7, seed=1)
    ids = np.ones((200, 51), "int32")
    own, numbers = numpy(sampling(ids, training=True))
    assert own.dtype == bool and numbers.dtype == np.float32
    assert not own[:, 0].any()  # the first position always reads the true token
    # Four standard deviations of 10000 independent choices.
    assert abs(own[:, 1:].mean() - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 10_000)
    for used in (numbers, numbers[own]):
        counts, _ = np.histogram(used, bins=16, range=(0, 1))
        assert counts.sum() == used.size
        expected = used.size / 16  # chi-square test with 15 degrees of freedom
        assert ((counts - expected) ** 2 / expected).sum() < 50
    next_own, _ = numpy(sampling(ids, training=True))
    assert (next_own != own).any()


def test_the_first_id_after_padding_is_always_the_true_one():
    ids = np.array([[0, 0, 2, 5], [2, 0, 5, 0]], "int32")
    own, _ = numpy(ScheduledSampling("constant", k=0.0)(ids, training=True))
    assert own[0].tolist() == [False, False, False, True]
    assert own[1, [0, 2]].tolist() == [False, True]


def test_outside_training_the_truth_is_read_and_no_batch_counted():
    sampling = ScheduledSampling("constant", k=0.0)
    own, numbers = numpy(sampling(TARGET))
    assert own.shape == numbers.shape == TARGET.shape
    assert own.dtype == bool and not own.any()
    assert float(sampling.batches) == 0.0
    numpy(sampling(TARGET, training=True))
    assert float(sampling.batches) == 1.0


def test_the_probability_changes_with_each_batch():
    sampling = ScheduledSampling("linear", k=1.0, slope=0.5)
    ids = np.ones((50, 41), "int32")
    shares = [numpy(sampling(ids, training=True)[0])[:, 1:].mean() for _ in range(4)]
    assert shares[0] == 0.0 and abs(shares[1] - 0.5) < 0.05 and shares[2:] == [1.0, 1.0]


@pytest.mark.parametrize("shares", [[5, 0, 3, 2], [1, 8], [1, 1, 1, 1, 1, 1, 1], [3, 1, 9, 2, 6]])
def test_a_number_selects_a_token_by_cumulative_probability(shares):
    ends = np.cumsum(shares) / np.sum(shares)
    numbers = (np.arange(1000) + 0.5) / 1000
    expected = [0, *np.searchsorted(ends, numbers, side="right"), len(shares) - 1]
    numbers = np.array([0.0, *numbers, np.nextafter(1.0, 0.0, dtype="float32")], "float32")
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(np.tile(shares, (1002, 1))), -1e9).astype("float32")
    ids = numpy(ScheduledSampling().predict_tokens(logits, numbers))
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_draws_from_a_large_vocabulary(dtype):
    # The numbers stay float32, so they select as many different tokens as with float32 logits.
    numbers = ((np.arange(2000) + 0.5) / 2000).astype("float32")
    logits = ops.zeros((2000, 2000), dtype=dtype)
    assert len(np.unique(numpy(ScheduledSampling().predict_tokens(logits, numbers)))) > 1990


def test_without_sampling_the_likeliest_token_is_read():
    logits = np.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]], "float32")
    ids = ScheduledSampling(sample=False).predict_tokens(logits, np.full(2, 0.99, "float32"))
    assert numpy(ids).tolist() == [1, 0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_config_round_trip(name):
    assert_config_round_trip(ScheduledSampling(**SCHEDULES[name][0], sample=False, seed=3))


# --- In a model -----------------------------------------------------------------------------------


def translator(sampling, input_feeding=False, tie_embeddings=False):
    cell, attention = keras.layers.GRUCell(8), BahdanauAttention(7)
    return Seq2Seq(
        12,
        12,
        embedding_dim=8,
        encoder=BidirectionalEncoder(6),
        decoder=AttentiveDecoder(
            cell, attention, DeepOutput(8, "tanh"), input_feeding=input_feeding
        ),
        scheduled_sampling=sampling,
        tie_embeddings=tie_embeddings,
    )


def step_by_step(model, choose):
    """Return the logits when step `i` reads the tokens `choose(i, logits of earlier steps)`."""
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
def test_probability_one_is_teacher_forcing(input_feeding):
    model = translator(ScheduledSampling("constant", k=1.0), input_feeding)
    plain = numpy(model(INPUTS, training=False))
    assert_close(model(INPUTS, training=True), plain, 1e-6)
    assert_close(plain[REAL], step_by_step(model, lambda i, _: TARGET[:, i])[REAL], 1e-5)


@pytest.mark.parametrize("input_feeding", [False, True])
@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_probability_zero_without_sampling_is_greedy_decoding(input_feeding, tie_embeddings):
    sampling = ScheduledSampling("constant", k=0.0, sample=False)
    model = translator(sampling, input_feeding, tie_embeddings)
    model.build()
    rng = np.random.default_rng(3)
    model.set_weights([w + rng.normal(scale=0.3, size=w.shape) for w in model.get_weights()])

    def choose(i, logits):
        return logits[-1].argmax(axis=-1) if i else TARGET[:, 0]

    expected = step_by_step(model, choose)[REAL]
    assert_close(numpy(model(INPUTS, training=True))[REAL], expected, 1e-5)
    # Outside training the truth is read.
    assert np.abs(numpy(model(INPUTS))[REAL] - expected).max() > 1e-3


def test_each_position_reads_the_chosen_token():
    own, numbers = numpy(ScheduledSampling("constant", k=0.5, seed=5)(TARGET, training=True))
    assert own.any() and not own[:, 1:].all()

    class FixedChoices(ScheduledSampling):
        def call(self, ids, training=None):
            return ops.convert_to_tensor(own), ops.convert_to_tensor(numbers)

    model = translator(FixedChoices(sample=False))

    def choose(i, logits):
        return np.where(own[:, i], logits[-1].argmax(axis=-1), TARGET[:, i]) if i else TARGET[:, 0]

    logits = numpy(model(INPUTS, training=True))
    assert_close(logits[REAL], step_by_step(model, choose)[REAL], 1e-5)


def test_fit_counts_batches_and_a_saved_model_keeps_the_count(tmp_path):
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
def test_batches_are_counted_exactly_in_half_precision(policy):
    with dtype_policy(policy):
        sampling = ScheduledSampling("inverse_sigmoid", k=2.0)
    sampling.batches.assign(4096.0)
    for _ in range(3):
        sampling(np.ones((2, 3), "int32"), training=True)
    assert float(sampling.batches) == 4099.0


@pytest.mark.skipif(keras.config.backend() == "torch", reason="torch has no XLA")
def test_a_model_compiled_by_xla_learns():
    model = translator(ScheduledSampling("constant", k=0.5), input_feeding=True)
    model.compile(keras.optimizers.Adam(0.02), loss=TokenCrossentropy(), jit_compile=True)
    history = model.fit(INPUTS, LABELS, epochs=8, batch_size=8, verbose=0)
    assert history.history["loss"][-1] < 0.95 * history.history["loss"][0]
    count = len(model.trainable_variables)
    moments = [numpy(v) for v in model.optimizer.variables[2:]]
    assert len(moments) == 2 * count and all(moment.any() for moment in moments)


@pytest.mark.parametrize("policy", POLICIES)
def test_losses_in_mixed_precision_are_finite(policy):
    with dtype_policy(policy):
        model = translator(ScheduledSampling("constant", k=0.3))
        model.compile("adam", TokenCrossentropy(), run_eagerly=True)
        losses = [float(model.train_on_batch(INPUTS, LABELS)) for _ in range(2)]
    assert np.isfinite(losses).all()
