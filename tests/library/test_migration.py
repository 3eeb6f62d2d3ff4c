"""The migration pages cover all of `tfa.seq2seq`, and their code runs."""

import functools
import re

import numpy as np
import pytest
from layer_checks import array, assert_close
from models import log_softmax
from pages import MIGRATION, run_python

from keras_bahdanau import TokenCrossentropy

PAGES = sorted(MIGRATION.glob("*.md"))
ADDONS = MIGRATION / "tensorflow-addons.md"


def replacements(path):
    """The Python expressions in the right-hand columns of a page."""
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", path.read_text("utf-8"), re.M)
    code = {code for _, here in rows for code in re.findall(r"`([^`]+)`", here)}
    return sorted(code for code in code if not re.match("--|keras-bahdanau |export --", code))


MECHANISM = "memory memory_sequence_length"
MONOTONIC = "sigmoid_noise sigmoid_noise_seed score_bias_init mode dtype name"
LOOP = "output_time_major impute_finished maximum_iterations parallel_iterations swap_memory"

# The public names of tfa.seq2seq. Each has the arguments of its constructor and, where they differ,
# of its call. Named tuples and abstract classes that belong together share one entry.
SIGNATURES = {
    "AttentionMechanism": f"{MECHANISM} probability_fn query_layer memory_layer",
    "BahdanauAttention": (
        f"units {MECHANISM} normalize probability_fn kernel_initializer dtype name"
    ),
    "LuongAttention": f"units {MECHANISM} scale probability_fn dtype name",
    "BahdanauMonotonicAttention": f"units {MECHANISM} normalize kernel_initializer {MONOTONIC}",
    "LuongMonotonicAttention": f"units {MECHANISM} scale {MONOTONIC}",
    "monotonic_attention": "p_choose_i previous_attention mode",
    "safe_cumprod": "x",
    "hardmax": "logits name",
    "AttentionWrapper": (
        "cell attention_mechanism attention_layer_size alignment_history cell_input_fn "
        "output_attention initial_cell_state name attention_layer attention_fn"
    ),
    "AttentionWrapperState": (
        "cell_state attention time alignments alignment_history attention_state"
    ),
    "Decoder, BaseDecoder": LOOP,
    "dynamic_decode": f"decoder {LOOP} training scope enable_tflite_convertible",
    "BasicDecoder": "cell sampler output_layer",
    "BasicDecoderOutput": "rnn_output sample_id",
    "BeamSearchDecoder": (
        "cell beam_width embedding_fn output_layer length_penalty_weight coverage_penalty_weight "
        "reorder_tensor_arrays embedding start_tokens end_token initial_state"
    ),
    "BeamSearchDecoderOutput, BeamSearchDecoderState, FinalBeamSearchDecoderOutput": (
        "predicted_ids beam_search_decoder_output scores parent_ids cell_state log_probs finished "
        "lengths accumulated_attention_probs"
    ),
    "tile_batch": "t multiplier name",
    "gather_tree": "step_ids parent_ids max_sequence_lengths end_token",
    "gather_tree_from_array": "t parent_ids sequence_length",
    "Sampler, CustomSampler": (
        "initialize_fn sample_fn next_inputs_fn sample_ids_shape sample_ids_dtype"
    ),
    "TrainingSampler": "time_major inputs sequence_length mask",
    "ScheduledEmbeddingTrainingSampler": (
        "sampling_probability embedding_fn time_major seed scheduling_seed"
    ),
    "ScheduledOutputTrainingSampler": "sampling_probability time_major seed next_inputs_fn",
    "GreedyEmbeddingSampler": "embedding_fn embedding start_tokens end_token",
    "SampleEmbeddingSampler": "embedding_fn softmax_temperature seed",
    "InferenceSampler": "sample_fn sample_shape sample_dtype end_fn next_inputs_fn",
    "SequenceLoss, sequence_loss": (
        "logits targets weights average_across_timesteps average_across_batch sum_over_timesteps "
        "sum_over_batch softmax_loss_function name"
    ),
}


def sections():
    """Yield each heading of the page on `tfa.seq2seq` with the arguments in its table."""
    parts = re.split(r"^#+ (.*)$", ADDONS.read_text("utf-8"), flags=re.M)[1:]
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        yield heading.replace("`", ""), re.findall(r"^\| `(\w+)` \|", body, re.M)


def test_every_name_and_argument_has_a_row():
    documented = {heading: sorted(names) for heading, names in sections() if names}
    assert documented == {name: sorted(arguments.split()) for name, arguments in SIGNATURES.items()}


namespace = functools.cache(run_python)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        pytest.param(path, code, id=f"{path.stem}: {code}")
        for path in PAGES
        for code in replacements(path)
    ],
)
def test_every_replacement_in_the_tables_runs(path, code):
    eval(compile(code, path.name, "eval"), namespace(path))


def test_losses_equal_the_sequence_losses(rng):
    logits, labels = array(rng, 2, 4, 6), np.array([[3, 1, 5, 2], [4, 2, 0, 0]])
    weights = np.array([[1.0, 0.5, 2.0, 1.0], [0.25, 3.0, 0.0, 0.0]])  # zero at padding
    weighted = -weights * np.take_along_axis(log_softmax(logits), labels[..., None], -1)[..., 0]
    average = TokenCrossentropy(reduction="mean_with_sample_weight")
    assert_close(average(labels, logits, weights), weighted.sum() / weights.sum())
    total = weighted.sum() / np.count_nonzero(weights)
    assert_close(TokenCrossentropy()(labels, logits, weights), total)
    none = TokenCrossentropy(reduction="none")
    assert_close(none(labels, logits, weights), weighted)
