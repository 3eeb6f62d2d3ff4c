"""Losses that make the logits themselves, against those that are given them."""

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
    ScheduledSampling,
    Seq2Seq,
    TokenAccuracy,
    TokenCrossentropy,
)
from keras_bahdanau.layers.candidates import sample_candidates
from keras_bahdanau_runtime.ids import PAD

INPUTS, LABELS = copy_task(rows=6)
ALIGNMENT = np.eye(LABELS.shape[1], dtype="float32")[None] * (LABELS != PAD)[..., None]
WEIGHTS = np.linspace(0.1, 2.0, LABELS.size, dtype="float32").reshape(LABELS.shape)
MODELS = {
    "plain": {},
    "tied": {"tie_embeddings": True},
    "dropout": {"dropout": 0.3},
    "scheduled": {"scheduled_sampling": {"schedule": "constant", "k": 0.5, "seed": 3}},
}
MODELS["all"] = MODELS["tied"] | MODELS["dropout"] | MODELS["scheduled"]


def model_with(loss, metrics=True, jit_compile="auto", scheduled_sampling=None, **options):
    """A model whose steps move its weights by exactly the gradient."""
    keras.utils.set_random_seed(0)
    if scheduled_sampling is not None:
        options["scheduled_sampling"] = ScheduledSampling(**scheduled_sampling)
    # The losses begin where the decoder ends: no encoder that takes long to compile.
    model = Seq2Seq(
        14, VOCABULARY, 5, keras.layers.Conv1D(6, 3, padding="same"),
        AttentiveDecoder(keras.layers.GRUCell(6), BahdanauAttention(4), DeepOutput(5)),
        bridge="mean", **options,
    )  # fmt: skip
    model.build()
    # As a new model has it, a bias of zeros would hide much.
    if not options.get("tie_embeddings"):
        model.output_layer.bias.assign(np.linspace(-1, 1, VOCABULARY))
    chosen = [TokenAccuracy(), Perplexity()]
    model.compile(
        keras.optimizers.SGD(1.0),
        loss,
        metrics=chosen[:1] if metrics else None,
        weighted_metrics=chosen[1:] if metrics else None,
        jit_compile=jit_compile,
    )
    return model


def step_of(loss, inputs=INPUTS, sample_weight=WEIGHTS, metrics=True, **options):
    """The logs of a training step, those of a test step, the weights after both."""
    model = model_with(loss, metrics, **options)
    logs = model.train_on_batch(inputs, LABELS, sample_weight, return_dict=True)
    model.reset_metrics()
    judged = model.test_on_batch(inputs, LABELS, sample_weight, return_dict=True)
    return logs, judged, [ops.convert_to_numpy(weight) for weight in model.weights]


def assert_same(found, expected, **tolerance):
    for logs, others in zip(found[:2], expected[:2], strict=True):
        assert logs.keys() == others.keys()
        for name, value in logs.items():
            np.testing.assert_allclose(float(value), float(others[name]), err_msg=name, **tolerance)
    for weight, other in zip(found[2], expected[2], strict=True):
        np.testing.assert_allclose(weight, other, **tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_chunks_change_neither_loss_nor_gradients_nor_metrics(name):
    inputs = {**INPUTS, "alignment": ALIGNMENT}
    found, expected = (
        step_of(TokenCrossentropy(0.1, chunk=chunk), inputs, **MODELS[name]) for chunk in (4, None)
    )
    assert set(found[0]) == {"loss", "token_accuracy", "perplexity"}
    assert_same(found, expected, rtol=1e-4, atol=1e-5)


# The numbers


def test_half_precision_holds_the_gradients_of_small_weights(rng):
    small = 1e-6
    layer, features, arrays = random_projection(
        rng, chunk=5, dtype="mixed_float16", scale=1 / small
    )
    layer.weighed = arrays[4] * np.float32(small)
    expected, gradients, _ = projection_by_hand(*arrays, 0.0)
    total, found = differentiate(layer)(features)
    assert_close(total, expected, 1e-2)
    for one, other in zip(found, gradients, strict=True):
        assert_close(one / (2 * expected), other, 1e-2)


@pytest.mark.parametrize("unknown", [VOCABULARY, -1])
def test_an_id_outside_of_the_vocabulary_makes_no_finite_total(unknown, rng):
    layer, features, _ = random_projection(rng, chunk=5)
    layer.labels[0, 0] = unknown
    try:
        total = ops.convert_to_numpy(layer(features))
    except Exception as error:  # TensorFlow's and torch's own are of no common class
        assert f"{unknown}" in str(error)
    else:
        assert np.isnan(total)


def test_an_id_that_does_not_count_may_be_none(rng):
    layer, features, arrays = random_projection(rng, chunk=5, label_smoothing=0.2)
    layer.weighed = arrays[4].copy()
    layer.weighed[0, :2] = 0.0
    expected, gradients, _ = projection_by_hand(*arrays[:4], layer.weighed, 0.2)
    layer.labels[0, :2] = -100, VOCABULARY
    total, found = differentiate(layer)(features)
    assert_close(total, expected, 1e-5)
    for one, other in zip(found, gradients, strict=True):
        assert_close(one / (2 * expected), other, 1e-5)


@pytest.mark.parametrize("chunk", [None, 5])
def test_a_sampled_total_is_that_of_its_candidates(rng, chunk):
    layer, features, arrays = random_projection(rng, chunk=chunk, sampled=2, label_smoothing=0.2)
    # So that the 5 labels and 2 more, 23 at most, are fewer than the vocabulary.
    layer.labels, layer.weighed = arrays[3][:1, :6], arrays[4][:1, :6]
    arrays = (features[:1, :6], *arrays[1:3], layer.labels, layer.weighed)
    found = sample_candidates(
        ops.convert_to_tensor(layer.labels.ravel()), 2, VOCABULARY, keras.random.SeedGenerator(5)
    )
    ids, shares = map(ops.convert_to_numpy, found)
    assert len(ids) == 8 and (shares < 1).any()
    expected, gradients, _ = projection_by_hand(*arrays, 0.2, ids, shares)
    total, slopes = differentiate(layer)(arrays[0])
    assert_close(total, expected)
    for one, other in zip(slopes, gradients, strict=True):
        assert_close(one / (2 * expected), other)


# Candidates


def test_candidates_hold_the_labels_and_others_drawn_evenly():
    labels = ops.convert_to_tensor(np.array([7, 3, 7, 0, 3], "int32"))
    seed = keras.random.SeedGenerator(0)
    drawn = np.zeros(20)
    for _ in range(300):
        ids, shares = map(ops.convert_to_numpy, sample_candidates(labels, 4, 20, seed))
        assert len(ids) == 9 and (np.diff(ids) > 0).all()  # of each id one
        assert {0, 3, 7} <= set(ids.tolist())
        # Three of them are labels, and six of the other 17 are drawn.
        np.testing.assert_allclose(shares, np.where(np.isin(ids, [0, 3, 7]), 1, 6 / 17), rtol=1e-6)
        drawn[ids] += 1
    drawn = np.delete(drawn, [0, 3, 7])
    assert (abs(drawn - 300 * 6 / 17) < 4 * np.sqrt(300 * 6 / 17 * 11 / 17)).all()


def test_candidates_are_reproducible():
    labels = ops.convert_to_tensor(np.array([7, 3], "int32"))

    def draws(seed):
        generator = keras.random.SeedGenerator(seed)
        drawn = [sample_candidates(labels, 6, 1000, generator).ids for _ in range(2)]
        return [ops.convert_to_numpy(ids).tolist() for ids in drawn]

    assert draws(1) == draws(1) != draws(2)
    assert draws(1)[0] != draws(1)[1]


def test_gradients_of_sampled_softmax_have_those_of_the_whole_as_their_mean(rng):
    """Of `log Z`, the probabilities; weighed by nothing, candidates would get far too much."""
    logits = rng.normal(size=60)
    whole = np.exp(logits) / np.exp(logits).sum()
    labels = ops.convert_to_tensor(np.argsort(-logits)[:5].astype("int32"))
    seed, mean, unweighed = keras.random.SeedGenerator(0), np.zeros(60), np.zeros(60)
    for _ in range(400):
        ids, shares = map(ops.convert_to_numpy, sample_candidates(labels, 15, 60, seed))
        for found, counts in ((mean, 1 / shares), (unweighed, 1)):
            exponentials = np.exp(logits[ids]) * counts
            found[ids] += exponentials / exponentials.sum() / 400
    assert np.abs(mean - whole).sum() < 0.06
    assert np.abs(unweighed - whole).sum() > 0.3


# In a model


@pytest.mark.parametrize("reduction", ["mean_with_sample_weight", "sum"])
def test_reductions_and_compilation(reduction):
    """Compiled by XLA on TensorFlow and JAX, without metrics, weights by sentence."""
    options = {
        "sample_weight": WEIGHTS[:, 0],
        "metrics": False,
        "jit_compile": keras.config.backend() != "torch",
    }
    found, expected = (
        step_of(TokenCrossentropy(reduction=reduction, chunk=chunk), **options)
        for chunk in (7, None)
    )
    assert_same(found, expected, rtol=1e-4, atol=1e-4 if reduction == "sum" else 1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_chunks_in_mixed_precision(policy):
    found, expected = (
        step_of(TokenCrossentropy(0.1, chunk=chunk), dtype=policy) for chunk in (7, None)
    )
    assert_same(found, expected, rtol=2e-2, atol=1e-2)


def test_sampling_is_for_training_and_evaluation_counts_all_ids():
    found, expected = (
        step_of(TokenCrossentropy(0.1, sampled=sampled), sample_weight=None)
        for sampled in (VOCABULARY, None)
    )
    assert_same(found, expected, rtol=1e-4, atol=1e-5)
    inputs, labels = ({k: v[:1, :4] for k, v in INPUTS.items()}, LABELS[:1, :4])
    model, whole = (
        model_with(TokenCrossentropy(sampled=sampled), metrics=False) for sampled in (4, None)
    )
    expected = float(whole.test_on_batch(inputs, labels))
    np.testing.assert_allclose(float(model.test_on_batch(inputs, labels)), expected, rtol=1e-5)
    model.optimizer.learning_rate = 0.0
    losses = [float(model.train_on_batch(inputs, labels)) for _ in range(4)]
    assert np.ptp(losses) > 1e-4  # other candidates each time
    assert abs(np.mean(losses) - expected) < 0.4


def test_the_model_gives_logits_and_is_saved_with_its_loss(tmp_path):
    model = model_with(TokenCrossentropy(0.1, chunk=4, sampled=3))
    model.fit(INPUTS, LABELS, batch_size=3, verbose=0, validation_data=(INPUTS, LABELS))
    shape = (*LABELS.shape, VOCABULARY)
    assert tuple(model(INPUTS).shape) == tuple(model(INPUTS, training=True).shape) == shape
    logits = model.predict(INPUTS, verbose=0)
    assert logits.shape == shape
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert (again.loss.chunk, again.loss.sampled) == (4, 3)
    judged = again.evaluate(INPUTS, LABELS, verbose=0, return_dict=True)
    expected = TokenCrossentropy(0.1, chunk=4)(LABELS, logits)  # of logits it is the same
    np.testing.assert_allclose(judged["loss"], float(expected), rtol=1e-4)
    assert set(judged) == {"loss", "token_accuracy", "perplexity"}


@pytest.mark.skipif(keras.config.backend() != "torch", reason="counts the tensors of torch")
def test_no_tensor_of_a_step_is_as_large_as_all_logits():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        """The largest tensor of logits, or of their gradients."""

        places = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            for part in keras.tree.flatten(found):
                if getattr(part, "ndim", 0) > 1 and part.shape[-1] == VOCABULARY:
                    self.places = max(self.places, part.numel() // VOCABULARY)
            return found

    for chunk in (4, None):
        model = model_with(TokenCrossentropy(0.1, chunk=chunk))
        for step in (model.train_on_batch, model.test_on_batch):
            with Largest() as largest:
                step(INPUTS, LABELS)
            # That of the 5 rows of the kernel is larger than a chunk.
            assert largest.places == (5 if chunk else LABELS.size)


def test_refuses_metrics_of_logits():
    model = model_with(TokenCrossentropy(chunk=4))
    model.compile(
        "sgd", TokenCrossentropy(chunk=4), metrics=["sparse_categorical_accuracy", TokenAccuracy()]
    )
    with pytest.raises(ValueError, match=r"`metrics` must be .*'sparse_categorical_accuracy'"):
        model.train_on_batch(INPUTS, LABELS)
    assert tuple(model(INPUTS).shape) == (*LABELS.shape, VOCABULARY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "`chunk` must be an int of at least 1. Received: 0"),
        ({"sampled": 2.5}, "`sampled` must be an int of at least 1. Received: 2.5"),
        ({"chunk": 4, "reduction": "none"}, "`reduction` must be .* with `chunk`. .*'none'"),
        ({"sampled": 4, "reduction": None}, "`reduction` must be .* with `sampled`. .*None"),
    ],
)
def test_refuses_options_of_a_loss(options, message):
    with pytest.raises(ValueError, match=message):
        TokenCrossentropy(**options)
