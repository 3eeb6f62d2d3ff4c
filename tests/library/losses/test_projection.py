"""Losses that compute the logits in chunks or sample them, against losses of all logits."""

import keras
import numpy as np
import pytest
from copy_task import copy_task
from gradients import differentiate
from keras import ops
from layer_checks import POLICIES, assert_close
from projections import VOCABULARY, projection_by_hand, random_projection

from keras_bahdanau import (
    AttentiveDecoder,
    BahdanauAttention,
    DeepOutput,
    Perplexity,
    Seq2Seq,
    TokenAccuracy,
    TokenCrossentropy,
)
from keras_bahdanau.layers import LuongAttention, PointerGenerator, ScheduledSampling
from keras_bahdanau.losses.projection import sample_candidates
from keras_bahdanau_runtime.ids import PAD

INPUTS, LABELS = copy_task(rows=6)
ALIGNMENT = np.eye(LABELS.shape[1], dtype="float32")[None] * (LABELS != PAD)[..., None]
WEIGHTS = np.linspace(0.1, 2.0, LABELS.size, dtype="float32").reshape(LABELS.shape)
MODELS = {
    "plain": {},
    "tied": {"tie_embeddings": True},
    "dropout": {"dropout": 0.3},
    "scheduled": {"scheduled_sampling": {"schedule": "constant", "k": 0.5, "seed": 3}},
    "copying": {"copy": True},
    "copying_tied": {"copy": True, "tie_embeddings": True},
}
MODELS["all"] = MODELS["tied"] | MODELS["dropout"] | MODELS["scheduled"]


def model_with(loss, metrics=True, jit_compile="auto", scheduled_sampling=None, **options):
    """Return a model whose training step subtracts exactly the gradient from its weights."""
    keras.utils.set_random_seed(0)
    if options.get("copy"):
        ids = [0, 0, 0, 0, *range(4, VOCABULARY - 2), 1, 1, 1]
        options["copy"] = PointerGenerator(ids, copied_words=2, attention=LuongAttention())
    if scheduled_sampling is not None:
        options["scheduled_sampling"] = ScheduledSampling(**scheduled_sampling)
    # The losses only see the decoder's output, so the encoder is one that compiles quickly.
    model = Seq2Seq(
        14, VOCABULARY, 5, keras.layers.Conv1D(6, 3, padding="same"),
        AttentiveDecoder(keras.layers.GRUCell(6), BahdanauAttention(4), DeepOutput(5)),
        bridge="mean", **options,
    )  # fmt: skip
    model.build()
    # The zero bias of a new model would hide mistakes.
    if not options.get("tie_embeddings"):
        model.output_layer.bias.assign(np.linspace(-1, 1, model.output_layer.units))
    model.compile(
        keras.optimizers.SGD(1.0),
        loss,
        metrics=[TokenAccuracy()] if metrics else None,
        weighted_metrics=[Perplexity()] if metrics else None,
        jit_compile=jit_compile,
    )
    return model


def step_of(loss, inputs=INPUTS, sample_weight=WEIGHTS, metrics=True, **options):
    """Return the logs of a training step, those of a test step, and the weights after both."""
    model = model_with(loss, metrics, **options)
    logs = model.train_on_batch(inputs, LABELS, sample_weight, return_dict=True)
    model.reset_metrics()
    test_logs = model.test_on_batch(inputs, LABELS, sample_weight, return_dict=True)
    return logs, test_logs, [ops.convert_to_numpy(weight) for weight in model.weights]


def assert_same_step(loss, expected_loss, rtol=1e-4, atol=1e-5, **options):
    """Check that a step with `loss` has the logs and weights of one with `expected_loss`."""
    step, expected = (step_of(each, **options) for each in (loss, expected_loss))
    for logs, others in zip(step[:2], expected[:2], strict=True):
        assert logs.keys() == others.keys()
        for name, value in logs.items():
            np.testing.assert_allclose(float(value), float(others[name]), rtol, atol, err_msg=name)
    for weight, other in zip(step[2], expected[2], strict=True):
        np.testing.assert_allclose(weight, other, rtol, atol)
    return step


@pytest.mark.parametrize("name", MODELS)
def test_chunks_change_neither_loss_nor_gradients_nor_metrics(name):
    losses = (TokenCrossentropy(0.1, chunk_size=chunk) for chunk in (4, None))
    inputs = {**INPUTS, "alignment": ALIGNMENT}
    logs, *_ = assert_same_step(*losses, inputs=inputs, **MODELS[name])
    assert set(logs) == {"loss", "token_accuracy", "perplexity"}


def assert_loss_and_gradients(layer, features, expected, gradients, atol=1e-5):
    loss, slopes = differentiate(layer)(features)
    assert_close(loss, expected, atol)
    for slope, gradient in zip(slopes, gradients, strict=True):
        # `differentiate` squares the loss.
        assert_close(slope / (2 * expected), gradient, atol)


def test_half_precision_keeps_the_gradients_of_small_weights(rng):
    small = 1e-6
    layer, features, arrays = random_projection(
        rng, chunk_size=5, dtype="mixed_float16", scale=1 / small
    )
    layer.weighed = arrays[4] * np.float32(small)
    expected, gradients, _ = projection_by_hand(*arrays, 0.0)
    assert_loss_and_gradients(layer, features, expected, gradients, 1e-2)


@pytest.mark.parametrize("unknown", [VOCABULARY, -1])
def test_a_label_outside_the_vocabulary_gives_an_error_or_nan(unknown, rng):
    layer, features, _ = random_projection(rng, chunk_size=5)
    layer.labels[0, 0] = unknown
    try:
        total = ops.convert_to_numpy(layer(features))
    except Exception as error:  # the errors of TensorFlow and torch have no common class
        assert f"{unknown}" in str(error)
    else:
        assert np.isnan(total)


def test_a_label_of_weight_zero_may_be_outside_the_vocabulary(rng):
    layer, features, arrays = random_projection(rng, chunk_size=5, label_smoothing=0.2)
    layer.weighed = arrays[4].copy()
    layer.weighed[0, :2] = 0.0
    expected, gradients, _ = projection_by_hand(*arrays[:4], layer.weighed, 0.2)
    layer.labels[0, :2] = -100, VOCABULARY
    assert_loss_and_gradients(layer, features, expected, gradients)


@pytest.mark.parametrize("chunk_size", [None, 5])
def test_a_sampled_loss_is_the_loss_over_its_candidates(rng, chunk_size):
    layer, features, arrays = random_projection(
        rng, chunk_size=chunk_size, sampled=2, label_smoothing=0.2
    )
    # Few enough labels that with 2 more candidates they are fewer than the vocabulary.
    layer.labels, layer.weighed = arrays[3][:1, :6], arrays[4][:1, :6]
    arrays = (features[:1, :6], *arrays[1:3], layer.labels, layer.weighed)
    candidates = sample_candidates(
        ops.convert_to_tensor(layer.labels.ravel()), 2, VOCABULARY, keras.random.SeedGenerator(5)
    )
    ids, shares = map(ops.convert_to_numpy, candidates)
    assert len(ids) == 8 and (shares < 1).any()
    expected, gradients, _ = projection_by_hand(*arrays, 0.2, ids, shares)
    assert_loss_and_gradients(layer, arrays[0], expected, gradients)


def test_candidates_are_the_labels_and_uniformly_drawn_ids():
    labels = ops.convert_to_tensor(np.array([7, 3, 7, 0, 3], "int32"))
    seed = keras.random.SeedGenerator(0)
    drawn = np.zeros(20)
    for _ in range(300):
        ids, shares = map(ops.convert_to_numpy, sample_candidates(labels, 4, 20, seed))
        assert len(ids) == 9 and (np.diff(ids) > 0).all()  # distinct
        assert {0, 3, 7} <= set(ids.tolist())
        # Three of the nine are labels. The other six are drawn from 17 ids.
        np.testing.assert_allclose(shares, np.where(np.isin(ids, [0, 3, 7]), 1, 6 / 17), rtol=1e-6)
        drawn[ids] += 1
    drawn = np.delete(drawn, [0, 3, 7])
    assert (abs(drawn - 300 * 6 / 17) < 4 * np.sqrt(300 * 6 / 17 * 11 / 17)).all()


def test_a_seed_reproduces_its_candidates():
    labels = ops.convert_to_tensor(np.array([7, 3], "int32"))

    def draws(seed):
        generator = keras.random.SeedGenerator(seed)
        drawn = [sample_candidates(labels, 6, 1000, generator).ids for _ in range(2)]
        return [ops.convert_to_numpy(ids).tolist() for ids in drawn]

    assert draws(1) == draws(1) != draws(2)
    assert draws(1)[0] != draws(1)[1]


def test_mean_gradients_of_the_sampled_softmax_are_those_of_the_full_softmax(rng):
    """The gradients of `log Z` are probabilities. Unweighted candidates would get too much."""
    logits = rng.normal(size=60)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    labels = ops.convert_to_tensor(np.argsort(-logits)[:5].astype("int32"))
    seed, mean, unweighted = keras.random.SeedGenerator(0), np.zeros(60), np.zeros(60)
    for _ in range(400):
        ids, shares = map(ops.convert_to_numpy, sample_candidates(labels, 15, 60, seed))
        for sums, counts in ((mean, 1 / shares), (unweighted, 1)):
            exponentials = np.exp(logits[ids]) * counts
            sums[ids] += exponentials / exponentials.sum() / 400
    assert np.abs(mean - probabilities).sum() < 0.06
    assert np.abs(unweighted - probabilities).sum() > 0.3


@pytest.mark.parametrize("reduction", ["mean_with_sample_weight", "sum"])
def test_compiled_chunks_equal_all_logits_for_each_reduction(reduction):
    """Compiled by XLA on TensorFlow and JAX, without metrics, with one weight per sentence."""
    assert_same_step(
        *(TokenCrossentropy(reduction=reduction, chunk_size=chunk) for chunk in (7, None)),
        atol=1e-4 if reduction == "sum" else 1e-5,
        sample_weight=WEIGHTS[:, 0],
        metrics=False,
        jit_compile=keras.config.backend() != "torch",
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_chunks_equal_all_logits_in_mixed_precision(policy):
    losses = (TokenCrossentropy(0.1, chunk_size=chunk) for chunk in (7, None))
    assert_same_step(*losses, rtol=2e-2, atol=1e-2, dtype=policy)


def test_training_samples_ids_and_evaluation_uses_all_of_them():
    losses = (TokenCrossentropy(0.1, sampled=sampled) for sampled in (VOCABULARY, None))
    assert_same_step(*losses, sample_weight=None)
    inputs, labels = ({k: v[:1, :4] for k, v in INPUTS.items()}, LABELS[:1, :4])
    model, unsampled = (
        model_with(TokenCrossentropy(sampled=sampled), metrics=False) for sampled in (4, None)
    )
    expected = float(unsampled.test_on_batch(inputs, labels))
    np.testing.assert_allclose(float(model.test_on_batch(inputs, labels)), expected, rtol=1e-5)
    model.optimizer.learning_rate = 0.0
    losses = [float(model.train_on_batch(inputs, labels)) for _ in range(4)]
    assert np.ptp(losses) > 1e-4  # each step has other candidates
    assert abs(np.mean(losses) - expected) < 0.4


def test_a_model_with_a_chunked_loss_returns_logits_and_is_saved_with_its_loss(tmp_path):
    model = model_with(TokenCrossentropy(0.1, chunk_size=4, sampled=3))
    model.fit(INPUTS, LABELS, batch_size=3, verbose=0, validation_data=(INPUTS, LABELS))
    shape = (*LABELS.shape, VOCABULARY)
    assert tuple(model(INPUTS).shape) == tuple(model(INPUTS, training=True).shape) == shape
    logits = model.predict(INPUTS, verbose=0)
    assert logits.shape == shape
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.loss.chunk_size, loaded.loss.sampled) == (4, 3)
    logs = loaded.evaluate(INPUTS, LABELS, verbose=0, return_dict=True)
    expected = TokenCrossentropy(0.1, chunk_size=4)(LABELS, logits)
    np.testing.assert_allclose(logs["loss"], float(expected), rtol=1e-4)
    assert set(logs) == {"loss", "token_accuracy", "perplexity"}


@pytest.mark.skipif(keras.config.backend() != "torch", reason="counts the tensors of torch")
def test_no_tensor_of_a_step_is_as_large_as_all_logits():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        """Records the size of the largest tensor of logits or of their gradients."""

        positions = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            outputs = function(*args, **(kwargs or {}))
            for tensor in keras.tree.flatten(outputs):
                if getattr(tensor, "ndim", 0) > 1 and tensor.shape[-1] == VOCABULARY:
                    self.positions = max(self.positions, tensor.numel() // VOCABULARY)
            return outputs

    for chunk in (4, None):
        model = model_with(TokenCrossentropy(0.1, chunk_size=chunk))
        for step in (model.train_on_batch, model.test_on_batch):
            with Largest() as largest:
                step(INPUTS, LABELS)
            # The kernel with its 5 rows is larger than a chunk of 4 positions.
            assert largest.positions == (5 if chunk else LABELS.size)


def test_metrics_that_need_all_logits_are_refused():
    model = model_with(TokenCrossentropy(chunk_size=4))
    model.compile(
        "sgd",
        TokenCrossentropy(chunk_size=4),
        metrics=["sparse_categorical_accuracy", TokenAccuracy()],
    )
    with pytest.raises(ValueError, match=r"`metrics` must be .*'sparse_categorical_accuracy'"):
        model.train_on_batch(INPUTS, LABELS)
    assert tuple(model(INPUTS).shape) == (*LABELS.shape, VOCABULARY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_size": 0}, "`chunk_size` must be an int of at least 1. Received: 0"),
        ({"sampled": 2.5}, "`sampled` must be an int of at least 1. Received: 2.5"),
        (
            {"chunk_size": 4, "reduction": "none"},
            "`reduction` must be .* with `chunk_size`. .*'none'",
        ),
        ({"sampled": 4, "reduction": None}, "`reduction` must be .* with `sampled`. .*None"),
    ],
)
def test_options_of_a_chunked_or_sampled_loss_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        TokenCrossentropy(**options)
