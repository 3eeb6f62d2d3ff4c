"""Whole models: a compiled training step, saving, generation and mixed precision."""

import functools

import keras
import numpy as np
import pytest
import reference
from copy_task import compile_to_copy, copy_task
from keras import ops
from layer_checks import POLICIES, compiled_alone, dtype_policy
from models import (
    MODELS,
    TARGET_VOCABULARY,
    VOCABULARIES,
    log_softmax,
    plain_gru,
    teacher_forced,
)

from keras_bahdanau import AttentiveDecoder, BeamSearch, Perplexity, Seq2Seq, TokenCrossentropy
from keras_bahdanau.layers import CoverageAttention, ScheduledSampling
from keras_bahdanau_runtime.ids import BOS, EOS, PAD

INPUTS, LABELS = copy_task(rows=16)
SOURCE = INPUTS["source"][:4]
BEAM, LENGTH = BeamSearch(3, 0.6), 7
# Each target word is linked to the source word at its own place.
GUIDE = np.eye(LABELS.shape[1], dtype="float32")[None] * (LABELS != PAD)[..., None]


def guided_coverage():
    return Seq2Seq(
        *VOCABULARIES,
        embedding_dim=8,
        encoder=keras.layers.Conv1D(12, 3, padding="same"),
        decoder=AttentiveDecoder(
            keras.layers.GRUCell(12),
            CoverageAttention(7, coverage_loss_weight=0.5),
            input_feeding=True,
        ),
        bridge="mean",
        guided_alignment=1.0,
    )


def scheduled_tied():
    model = plain_gru()
    model.scheduled_sampling = ScheduledSampling("constant", k=0.5, seed=3)
    return model


# A model, its loss, its inputs.
STEPS = {
    "rnnsearch": (MODELS["rnnsearch"], TokenCrossentropy(0.1), INPUTS),
    "stacked_lstm_with_dropout": (MODELS["stacked_lstm"], TokenCrossentropy(), INPUTS),
    "guided_coverage": (guided_coverage, TokenCrossentropy(), {**INPUTS, "alignment": GUIDE}),
    "scheduled_tied_chunks": (scheduled_tied, TokenCrossentropy(0.1, chunk_size=5), INPUTS),
    "sampled_softmax": (MODELS["rnnsearch"], TokenCrossentropy(sampled=4), INPUTS),
}


def two_steps(name, **options):
    """The logs of two training steps and the weights after them, all from the same seed."""
    make, loss, inputs = STEPS[name]
    keras.utils.set_random_seed(0)
    model = make()
    model.build()
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=[Perplexity()], **options)
    logs = [model.train_on_batch(inputs, LABELS, return_dict=True) for _ in range(2)]
    weights = [ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    return [[float(log["loss"]), float(log["perplexity"])] for log in logs], weights


@compiled_alone
@pytest.mark.parametrize("name", STEPS)
def test_a_compiled_training_step_equals_an_eager_one(name):
    # XLA on TensorFlow draws other random numbers than the eager step.
    is_random = name.startswith(("stacked", "scheduled", "sampled"))
    jit_compile = not (is_random and keras.config.backend() == "tensorflow")
    (eager, weights), (compiled, others) = (
        two_steps(name, **options)
        for options in ({"run_eagerly": True}, {"jit_compile": jit_compile})
    )
    np.testing.assert_allclose(compiled, eager, rtol=1e-4)
    for weight, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(other, weight, rtol=1e-3, atol=1e-5)


@functools.cache
def trained(name):
    """A model after a short `fit`, and the losses of its epochs."""
    keras.utils.set_random_seed(0)
    model = compile_to_copy(MODELS[name]())
    history = model.fit(INPUTS, LABELS, epochs=3, batch_size=8, verbose=0)
    return model, history.history["loss"]


@pytest.mark.parametrize("name", MODELS)
def test_fit_moves_every_weight_and_evaluate_is_the_mean_over_real_tokens(name):
    model, losses = trained(name)
    assert losses[-1] < losses[0]
    moments = [ops.convert_to_numpy(v) for v in model.optimizer.variables[2:]]
    assert len(moments) == 2 * len(model.trainable_weights)
    assert all(moment.any() for moment in moments)
    log_probs = log_softmax(model.predict(INPUTS, verbose=0))
    likelihoods = np.take_along_axis(log_probs, LABELS[..., None], axis=-1)[..., 0]
    loss = model.evaluate(INPUTS, LABELS, batch_size=len(LABELS), verbose=0)
    np.testing.assert_allclose(loss, -likelihoods[LABELS != PAD].mean(), rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_beam_returns_the_scores_and_alignments_of_teacher_forcing(name):
    model, _ = trained(name)
    result = model.generate(SOURCE, search=BEAM, max_length=LENGTH)
    log_probs, weights = teacher_forced(model, SOURCE, result.tokens)
    for b, k in np.ndindex(*result.lengths.shape):
        length = result.lengths[b, k]
        tokens = result.tokens[b, k, :length]
        assert length == LENGTH or tokens[-1] == EOS
        total = log_probs[b, k, np.arange(length), tokens].sum()
        score = total / ((5 + length) / 6) ** 0.6
        np.testing.assert_allclose(result.scores[b, k], score, rtol=1e-4, atol=1e-4)
        alignment = result.alignments[b, k, :length]
        np.testing.assert_allclose(alignment, weights[b, k, :length], atol=1e-4)
        assert not alignment[:, SOURCE[b] == PAD].any()


@pytest.mark.parametrize("name", MODELS)
def test_given_targets_have_the_scores_and_alignments_of_teacher_forcing(name):
    model, _ = trained(name)
    # The shapes of the beam above, for which JAX has already compiled the teacher forcing.
    shape = (len(SOURCE), BEAM.beam_size, LENGTH)
    targets = np.random.default_rng(1).integers(4, TARGET_VOCABULARY, shape).reshape(-1, LENGTH)
    lengths = np.arange(len(targets)) % LENGTH + 1
    targets[np.arange(LENGTH) >= lengths[:, None]] = PAD
    targets[::2][np.arange(LENGTH) == lengths[::2, None] - 1] = EOS
    scores = model.score(np.repeat(SOURCE, BEAM.beam_size, axis=0), targets)
    np.testing.assert_array_equal(scores.lengths, lengths)
    log_probs, weights = (
        part.reshape(len(targets), LENGTH, -1)
        for part in teacher_forced(model, SOURCE, targets.reshape(shape))
    )
    for b, length in enumerate(lengths):
        expected = log_probs[b, np.arange(length), targets[b, :length]]
        np.testing.assert_allclose(scores.log_probs[b, :length], expected, atol=1e-4)
        np.testing.assert_allclose(scores.totals[b], expected.sum(), atol=1e-4)
        alignment = scores.alignments[b, :length]
        np.testing.assert_allclose(alignment, weights[b, :length], atol=1e-4)
        assert not scores.log_probs[b, length:].any() and not scores.alignments[b, length:].any()


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_generates_and_trains_as_the_one_in_memory(name, tmp_path):
    model, _ = trained(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for variable, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(variable), ops.convert_to_numpy(other), rtol=1e-6
        )
    ours, theirs = (m.generate(SOURCE, search=BEAM, max_length=LENGTH) for m in (model, loaded))
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-4, atol=1e-4)
    if name == "rnnsearch":
        again = keras.saving.load_model(tmp_path / "model.keras")
        losses = [
            [float(m.train_on_batch(INPUTS, LABELS)) for _ in range(2)] for m in (loaded, again)
        ]
        np.testing.assert_allclose(*losses, rtol=1e-4)
        assert losses[0][1] < losses[0][0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_of_mixed_precision_learns_and_generates(policy):
    with dtype_policy(policy):
        model = compile_to_copy(plain_gru())
        losses = [float(model.train_on_batch(INPUTS, LABELS)) for _ in range(8)]
        logits = model(INPUTS)
        result = model.generate(SOURCE, search=BEAM, max_length=3)
    assert losses[-1] < 0.97 * losses[0]
    assert all(weight.dtype == "float32" for weight in model.trainable_weights)
    assert keras.backend.standardize_dtype(logits.dtype) == policy.removeprefix("mixed_")
    assert result.scores.dtype == result.alignments.dtype == np.float32
    assert np.isfinite(result.scores).all()


def test_only_training_steps_compute_in_their_own_policy(tmp_path):
    with dtype_policy("mixed_bfloat16"):
        mixed = compile_to_copy(plain_gru())
    model = compile_to_copy(plain_gru())
    model.training_dtype_policy = "mixed_bfloat16"
    for other in (mixed, model):
        other.build()
    model.set_weights(mixed.get_weights())
    losses = [[float(m.train_on_batch(INPUTS, LABELS)) for _ in range(2)] for m in (mixed, model)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    plain = plain_gru()
    plain.build()
    plain.set_weights(model.get_weights())
    logits = ops.convert_to_numpy(model(INPUTS))
    np.testing.assert_array_equal(logits, ops.convert_to_numpy(plain(INPUTS)))
    # bfloat16 has three significant digits.
    loss = reference.token_losses(LABELS, logits, 0.0).sum() / (LABELS != PAD).sum()
    np.testing.assert_allclose(model.evaluate(INPUTS, LABELS, verbose=0), loss, rtol=1e-5)
    results = [m.generate(SOURCE, search=BEAM, max_length=3).scores for m in (model, plain)]
    np.testing.assert_allclose(*results, rtol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    policies = {config["config"]["name"] for config in policy_configs(loaded.get_config())}
    assert (policies, loaded.training_dtype_policy) == ({"float32"}, "mixed_bfloat16")


def policy_configs(config):
    """Yield the configs of all dtype policies in the config of a model."""
    if isinstance(config, dict):
        if config.get("class_name") == "DTypePolicy":
            yield config
        config = list(config.values())
    if isinstance(config, (list, tuple)):
        for part in config:
            yield from policy_configs(part)


def test_scores_have_the_share_of_each_probability_that_was_copied_from_each_source_token():
    model, _ = trained("copying")
    target = np.array([[6, 10, 5, 3], [4, 11, 3, 0]], "int32")
    scores = model.score(SOURCE[:2], target)
    shares = scores.copied.sum(axis=-1)
    inputs = {"source": SOURCE[:2], "target": np.insert(target[:, :-1], 0, BOS, axis=1)}
    mixed = np.exp(log_softmax(model.predict(inputs, verbose=0)))
    bias = model.copy.gate_layer.bias
    before = ops.convert_to_numpy(bias)
    bias.assign(before + 100.0)  # nothing is copied
    generated = np.exp(log_softmax(model.predict(inputs, verbose=0)))
    bias.assign(before)
    # The end is never copied, so its probabilities give the factor between both softmaxes.
    expected = 1.0 - generated / mixed * (mixed[..., EOS] / generated[..., EOS])[..., None]
    expected = np.take_along_axis(expected, target[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(shares, np.where(target == PAD, 0.0, expected), atol=1e-4)
    assert (shares > 0.01).any() and (shares < 0.99).any()
