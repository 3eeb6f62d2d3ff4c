"""The model, initial weights and training of the paper's appendix."""

import functools
import inspect

import keras
import numpy as np
import pytest
import reference
from layer_checks import assert_close, numpy

from keras_bahdanau import (
    GreedySearch,
    RNNEncoderDecoder,
    RNNSearch,
    TokenCrossentropy,
    Tokenizer,
    TrainingOptions,
    TranslationDataset,
)
from keras_bahdanau.data.choices import apply_choices
from keras_bahdanau.layers import LayerNormGRUCell, LocationSensitiveAttention
from keras_bahdanau.training import paper_training
from keras_bahdanau.training.rules import TextFacts, choose_training
from keras_bahdanau.training.run import new_model
from keras_bahdanau_runtime.ids import BOS, EOS, PAD

# n, m, n', l and the vocabularies, all different.
N, M, A, L = 7, 6, 5, 4
SIZES = {"units": N, "embedding_dim": M, "attention_units": A, "maxout_units": L}
SOURCE_VOCABULARY, TARGET_VOCABULARY = 13, 11
MODELS = {"rnnsearch": RNNSearch, "rnnencdec": RNNEncoderDecoder}
both = pytest.mark.parametrize("name", MODELS)

SOURCE = np.array([[4, 5, 6, 7, EOS], [12, 4, EOS, PAD, PAD], [EOS, PAD, PAD, PAD, PAD]])
TARGET = np.array([[BOS, 4, 9, PAD], [BOS, 5, 6, 10], [BOS, PAD, PAD, PAD]])


def test_another_attention_is_part_of_the_model_and_its_file(tmp_path):
    attention = LocationSensitiveAttention(5, filters=2, kernel_size=3)
    model = RNNSearch(SOURCE_VOCABULARY, TARGET_VOCABULARY, **SIZES, attention=attention)
    model.build()
    assert model.decoder.attention is attention is model.attention
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.attention.get_config() == attention.get_config()
    inputs = {"source": SOURCE, "target": TARGET}
    assert_close(loaded(inputs), model(inputs), 1e-6)
    assert RNNSearch(SOURCE_VOCABULARY, TARGET_VOCABULARY, **SIZES).attention is None
    with pytest.raises(ValueError, match="`attention` must be None for a RNNEncoderDecoder, which"):
        RNNEncoderDecoder(SOURCE_VOCABULARY, TARGET_VOCABULARY, **SIZES, attention=attention)


@functools.cache
def small_model(name, readout_state="previous"):
    return MODELS[name](SOURCE_VOCABULARY, TARGET_VOCABULARY, **SIZES, readout_state=readout_state)


def paper_names(model):
    """Return the weights of a model by the paper's names, in float64."""
    p = {
        "E_x": model.source_embedding.embeddings,
        "E_y": model.target_embedding.embeddings,
        "W_s": model.bridge.kernel,
        "b_s": model.bridge.bias,
        "W_o": model.output_layer.kernel,
        "b_y": model.output_layer.bias,
        "b_o": model.decoder.readout.bias,
    }
    p = {name: numpy(value).astype("float64") for name, value in p.items()}
    p["forward"] = gates(model.encoder.forward_layers[0].cell)
    p["backward"] = gates(model.encoder.backward_layers[0].cell)
    p["decoder"] = gates(model.decoder.cell)
    readout = numpy(model.decoder.readout.kernel).astype("float64")
    p["U_o"], p["V_o"], p["C_o"] = np.split(readout, [N, N + M])
    if not isinstance(model, RNNEncoderDecoder):
        attention = reference.weights_by_name(model.decoder.attention)
        p |= {"W_a": attention["query_kernel"], "U_a": attention["key_kernel"]}
        p |= {"v_a": attention["score_kernel"][:, 0], "b_a": attention["bias"]}
    return p


def gates(cell):
    """Return a cell's weights by gate. Keras's z is one minus the paper's: sigma(-x)."""
    w, u, b = reference.weights_by_name(cell).values()
    (w_z, w_r, w), (u_z, u_r, u), (b_z, b_r, b) = (np.split(part, 3, axis=-1) for part in (w, u, b))
    return {
        **{"W_z": -w_z, "U_z": -u_z, "b_z": -b_z},
        **{"W_r": w_r, "U_r": u_r, "b_r": b_r},
        **{"W": w, "U": u, "b": b},
    }


# --- A.2: the model -------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("readout_state", ["previous", "current"])
def test_logits_equal_the_equations_of_the_paper(name, readout_state, rng):
    model = small_model(name, readout_state)
    model.build()
    for weight in model.trainable_variables:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    p = paper_names(model)
    logits = numpy(model({"source": SOURCE, "target": TARGET}))
    assert logits.shape == (*TARGET.shape, TARGET_VOCABULARY)
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != PAD], target[target != PAD]
        expected = reference.rnn_search(
            source, target, p, fixed=name == "rnnencdec", readout_state=readout_state
        )
        assert np.abs(expected).max() > 0.5
        assert_close(logits[row, : len(target)], expected, 1e-5)
        if len(target) > 1:
            outputs = target[1:]
            scores = model.score([source], [outputs])
            log_probs = expected - np.logaddexp.reduce(expected, axis=-1, keepdims=True)
            assert_close(scores.log_probs[0], log_probs[np.arange(len(outputs)), outputs], 1e-5)


@both
def test_widths_are_those_of_the_paper(name):
    model = small_model(name)
    model.build()
    context = N if name == "rnnencdec" else 2 * N
    expected = [
        *[(SOURCE_VOCABULARY, M), (TARGET_VOCABULARY, M)],
        *[(M, 3 * N), (N, 3 * N), (3 * N,)] * 2,
        *[(N, N), (N,)],
        *[(M + context, 3 * N), (N, 3 * N), (3 * N,)],
        *[(N + M + context, 2 * L), (2 * L,)],
        *[(L, TARGET_VOCABULARY), (TARGET_VOCABULARY,)],
    ]
    if name == "rnnsearch":
        expected += [(N, A), (2 * N, A), (A, 1), (A,)]
    assert sorted(tuple(w.shape) for w in model.trainable_weights) == sorted(expected)


def test_default_sizes_are_those_of_the_paper():
    for model in MODELS.values():
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(model).parameters.items()
            if parameter.default is not parameter.empty
        }
        assert defaults == {
            "units": 1000,
            "embedding_dim": 620,
            "attention_units": 1000,
            "maxout_units": 500,
            "reset_after": False,
            "readout_state": "previous",
            "initializer": "paper",
            "dropout": 0.0,
            "tie_embeddings": False,
            "join_embeddings": False,
            "encoder_layers": 1,
            "encoder_dropout": 0.0,
            "conditional": False,
            "layer_normalization": False,
            "attention": None,
        }


# --- B.1: the first weights -----------------------------------------------------------------------


def initial_weights(model):
    """Return the trainable weights by path."""
    model.build()
    return {weight.path: numpy(weight) for weight in model.trainable_weights}


@both
def test_initial_weights_have_the_distributions_of_the_paper(name):
    units = 64
    model = MODELS[name](
        200, 220, units=units, embedding_dim=48, attention_units=56, maxout_units=32
    )
    zeros, orthogonal, normal = [], [], []
    for path, value in initial_weights(model).items():
        kind = path.split("/")[-1]
        if kind in ("bias", "score_kernel"):
            assert not value.any(), path
            zeros.append(value)
        elif kind == "recurrent_kernel":
            orthogonal += np.split(value, 3, axis=1)
        else:
            expected = 0.001 if kind in ("query_kernel", "key_kernel") else 0.01
            np.testing.assert_allclose(value.std(), expected, rtol=0.1, err_msg=path)
            assert abs(value.mean()) < 0.1 * expected
            # A uniform distribution ends at 1.7 standard deviations, a truncated normal at 2.3.
            assert np.abs(value).max() > 3 * expected
            normal.append(value)
    for u in orthogonal:
        np.testing.assert_allclose(u.T @ u, np.eye(units), atol=1e-5)
    # Orthogonal: U, U_z, U_r of three recurrences.
    # Normal: two embeddings, three W, W_s, readout, W_o, W_a, U_a.
    assert len(orthogonal) == 9 and len(normal) == (10 if name == "rnnsearch" else 8)
    # Biases of three recurrences, of s_0, readout and output; b_a and v_a.
    assert len(zeros) == (8 if name == "rnnsearch" else 6)
    # All matrices are different.
    heads = np.array([value.ravel()[:4] for value in orthogonal + normal])
    distances = np.abs(heads[:, None] - heads[None]).max(-1) + np.eye(len(heads))
    assert distances.min() > 1e-5


def test_initializer_none_uses_the_defaults_of_keras():
    model = RNNSearch(200, 220, **SIZES, initializer=None)
    for path, value in initial_weights(model).items():
        if path.endswith("/score_kernel"):
            assert value.any()
        if path.endswith("/recurrent_kernel"):
            np.testing.assert_allclose(value @ value.T, np.eye(N), atol=1e-5)


def test_a_model_from_a_config_has_the_papers_initializer():
    copy = RNNSearch.from_config(small_model("rnnsearch").get_config())
    copy.build()
    for u in np.split(numpy(copy.decoder.cell.recurrent_kernel), 3, axis=1):
        np.testing.assert_allclose(u.T @ u, np.eye(N), atol=1e-5)


# --- B.2: training --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gradients", "clipped"),
    [
        ([[3.0, 0.0], [-4.0]], [[0.6, 0.0], [-0.8]]),  # the global norm is 5
        ([[0.3, 0.0], [-0.4]], [[0.3, 0.0], [-0.4]]),
        ([[0.001, 0.0], [0.0]], [[0.001, 0.0], [0.0]]),
    ],
)
def test_the_optimizer_clips_the_gradient_norm_and_steps_by_adadelta(gradients, clipped):
    optimizer = paper_training().optimizer
    weights = [keras.Variable([0.1, 0.2]), keras.Variable([0.3])]
    before = [numpy(weight) for weight in weights]
    optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients], weights)
    # Adadelta (arXiv 1212.5701, algorithm 1) has E[g^2] = 0.05 g^2 after the first step.
    # The step is -sqrt(epsilon) / sqrt(E[g^2] + epsilon) g.
    squares = [numpy(v) for v in optimizer.variables if "accumulated_grad" in v.path]
    for weight, start, square, g in zip(weights, before, squares, clipped, strict=True):
        g = np.array(g)
        np.testing.assert_allclose(square, 0.05 * g**2, rtol=1e-4)
        step = np.sqrt(1e-6) / np.sqrt(0.05 * g**2 + 1e-6) * g
        np.testing.assert_allclose(start - numpy(weight), step, rtol=1e-3)


def test_batches_of_80_are_sorted_by_length_within_20_batches():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 50, 1600 + 130)
    sentences = [[4 + i] * (length - 1) + [EOS] for i, length in enumerate(lengths)]
    dataset = TranslationDataset(sentences, sentences, **paper_training().data)
    assert len(dataset) == 20 + 2
    batches = [labels for _, labels in dataset]
    assert all(len(labels) == 80 for labels in batches)
    window = np.concatenate([np.count_nonzero(labels, axis=1) for labels in batches[2:20]])
    buckets = -(-window // dataset.bucket)  # the order within a bucket is free
    assert (np.diff(buckets) <= 0).all()
    dataset.on_epoch_end()
    for labels, (_, next_epoch) in zip(batches, dataset, strict=True):
        np.testing.assert_array_equal(labels, next_epoch)


def test_the_papers_training_lowers_the_loss():
    optimizer, data = paper_training()
    model = small_model("rnnsearch")
    model.compile(optimizer=optimizer, loss=TokenCrossentropy())
    rng = np.random.default_rng(0)
    sentences = [[*rng.integers(4, TARGET_VOCABULARY, 3).tolist(), EOS] for _ in range(160)]
    dataset = TranslationDataset(sentences, sentences, **data)
    history = model.fit(dataset, epochs=3, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < losses[0]


# --- Beyond the paper -----------------------------------------------------------------------------


def test_options_beyond_the_paper_reach_the_layers_and_the_config():
    model = RNNSearch(
        SOURCE_VOCABULARY, TARGET_VOCABULARY, **SIZES, readout_state="current",
        dropout=(0.1, 0.2, 0.3), encoder_layers=2, encoder_dropout=0.4, conditional=True,
        layer_normalization=True, join_embeddings=True,
    )  # fmt: skip
    for each in (model, RNNSearch.from_config(model.get_config())):
        encoder, decoder = each.encoder, each.decoder
        assert encoder.num_layers == 2 and encoder.residual and encoder.dropout == 0.4
        assert type(decoder.cell) is type(decoder.context_cell) is LayerNormGRUCell
        assert decoder.cell is not decoder.context_cell and decoder.query_state == "current"
        dropouts = each.embedding_dropout, each.annotation_dropout, each.readout_dropout
        assert [layer.rate for layer in dropouts] == [0.1, 0.2, 0.3]
        assert each.encode(SOURCE)[0].shape[-1] == 2 * N + M
        logits = numpy(each({"source": SOURCE, "target": TARGET}))
        assert logits.shape == (*TARGET.shape, TARGET_VOCABULARY) and np.isfinite(logits).all()


@pytest.mark.parametrize(
    ("name", "value", "received"),
    [
        *[("dropout", value, repr(value)) for value in (1.0, "0.1", None)],
        ("dropout", (0.1, 0.2), r"\("),
        ("dropout", (0.1, 0.2, 1.0), "1.0"),
        *[("encoder_dropout", value, repr(value)) for value in (1.0, -0.1, "0.1", None)],
        ("initializer", "he", "'he'"),
    ],
)
def test_options_out_of_range_are_refused(name, value, received):
    with pytest.raises(ValueError, match=f"Argument `{name}` must be .* Received: {received}"):
        RNNSearch(SOURCE_VOCABULARY, TARGET_VOCABULARY, **SIZES, **{name: value})


# --- The defaults of `train` ----------------------------------------------------------------------


def test_a_model_from_a_tokenizer_has_the_architecture_of_train_for_sentences():
    tokenizer = Tokenizer.train(["two dogs"], ["zwei Hunde"], vocabulary_size=280)
    options = TrainingOptions("a.en", "a.de", validation_source="b.en", validation_target="b.de")
    options = apply_choices(options, choose_training(options, TextFacts(9, "bpe", 2.0, 5)))
    config = RNNSearch.from_tokenizer(tokenizer, dtype="float32", name="m").get_config()
    trained = new_model(options, tokenizer).get_config() | {"name": "m"}
    assert config == trained
    assert config["source_vocabulary_size"] == tokenizer.source_vocabulary_size
    assert config["target_vocabulary_size"] == tokenizer.target_vocabulary_size


def test_a_model_from_a_tokenizer_takes_other_sizes():
    tokenizer = Tokenizer.train(["two dogs"], ["zwei Hunde"], vocabulary_size=280)
    model = RNNEncoderDecoder.from_tokenizer(tokenizer, embedding_dim=6, conditional=False)
    assert isinstance(model, RNNEncoderDecoder)
    assert (model.units, model.embedding_dim, model.maxout_units) == (256, 6, 6)
    assert (model.conditional, model.tokenizer) == (False, tokenizer)
    with pytest.raises(ValueError, match="Argument `tokenizer` must be a Tokenizer"):
        RNNSearch.from_tokenizer("tokenizer.json")


def test_a_model_from_a_tokenizer_copies_words_that_it_does_not_know():
    tokenizer = Tokenizer.from_pieces(["to"], ["zu"], copied_words=3)
    sizes = {"units": 6, "embedding_dim": 5, "attention_units": 4}
    model = RNNSearch.from_tokenizer(tokenizer, **sizes, copy=True)
    model.build()
    model.copy.gate_layer.kernel.assign(np.zeros((5, 1)))
    model.copy.gate_layer.bias.assign([-100.0])  # every token is copied
    [translation] = model.translate(["Rex to Ada"], GreedySearch(), max_length=3)
    words = translation.text.split()
    assert len(words) == 3 and set(words) <= {"Rex", "to", "Ada"}
    # The numbered words of the source are `Rex`, `to`, which the target lacks, and `Ada`.
    scores = model.score([tokenizer.encode_source("Rex to Ada")], [[5, 6, 7]])
    np.testing.assert_allclose(scores.copied[0, :, :3], np.eye(3), atol=1e-5)  # of logits of 100
