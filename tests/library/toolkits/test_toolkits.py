"""Imported models against plain PyTorch models with the weights' names of each toolkit."""

import argparse
import json
import os

import keras
import numpy as np
import pytest
import torch
import typer.testing
from layer_checks import numpy
from torch_models import Fairseq, Joey, OpenNMT

from keras_bahdanau import GreedySearch
from keras_bahdanau.toolkits import import_fairseq, import_joeynmt, import_opennmt
from keras_bahdanau.training.run import load_best, train
from keras_bahdanau_export.commands.app import app
from keras_bahdanau_runtime.runs.options import TrainingOptions
from keras_bahdanau_runtime.text.batches import pad

# Sentences of several lengths: all but one are padded.
TEXTS = ["the red ca@@ t sees the dog", "a dog", "the", "dog dog a ca@@ t red"]
STEPS = 6


def joey_config(
    rnn="gru", attention="bahdanau", init="bridge", units=4, width=5, decoder_width=5, **options
):
    """The options of a JoeyNMT configuration, with a number of layers and others in `options`."""
    common = {"rnn_type": rnn, "num_layers": options.get("layers", 1)}
    embeddings = {"embedding_dim": width, "scale": options.get("scale", False)}
    source_embeddings = embeddings | {"embedding_dim": options.get("source_width", width)}
    return {
        "tied_softmax": options.get("tied", False),
        "encoder": common | {"hidden_size": units, "embeddings": source_embeddings},
        "decoder": common
        | {"hidden_size": decoder_width, "embeddings": embeddings}
        | {"attention": attention, "init_hidden": init}
        | {"input_feeding": options.get("feeding", True)},
    }


def write_joey(folder, config, model=None):
    """Write a JoeyNMT run with the weights of a PyTorch model, and return the model."""
    if model is None:
        model = Joey(config["encoder"], config["decoder"], config["tied_softmax"])
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps({"name": "run", "model": config}))
    for name, pieces in zip(("src_vocab.txt", "trg_vocab.txt"), model.pieces, strict=True):
        (folder / name).write_text("\n".join(pieces) + "\n", encoding="utf-8")
    torch.save(model.checkpoint(), folder / "best.ckpt")
    return model


def make_joey(folder, **options):
    model = write_joey(folder, joey_config(**options))
    return model, import_joeynmt(folder)


def onmt_options(encoder="brnn", rnn="LSTM", attention="general", layers=2, **options):
    return {
        "encoder_type": encoder,
        "decoder_type": "rnn",
        "rnn_type": rnn,
        "global_attention": attention,
        "global_attention_function": options.get("function", "softmax"),
        "enc_layers": layers,
        "dec_layers": layers,
        "input_feed": options.get("feed", 1),
        "bridge": options.get("bridge", False),
        "model_task": "seq2seq",
        "share_vocab": False,
    }


def make_onmt(folder, **options):
    model = OpenNMT(onmt_options(**options))
    torch.save(model.checkpoint(), folder / "model.pt")
    return model, import_opennmt(folder / "model.pt")


def write_dictionaries(folder, model):
    paths = [folder / "dict.en.txt", folder / "dict.de.txt"]
    for path, pieces in zip(paths, model.pieces, strict=True):
        path.write_text("".join(f"{piece} 7\n" for piece in pieces[4:]), encoding="utf-8")
    return paths


def make_fairseq(folder, **options):
    model = Fairseq(**options)
    torch.save(model.checkpoint(), folder / "checkpoint.pt")
    return model, import_fairseq(folder / "checkpoint.pt", write_dictionaries(folder, model))


CASES = {
    "joeynmt": (make_joey, {}),
    "joeynmt luong": (
        make_joey,
        {"rnn": "lstm", "attention": "luong", "init": "last", "layers": 2, "decoder_width": 4},
    ),
    "joeynmt both directions": (
        make_joey,
        {"init": "last", "decoder_width": 8, "feeding": False, "scale": True, "source_width": 3},
    ),
    "joeynmt tied": (make_joey, {"rnn": "lstm", "init": "zero", "tied": True}),
    "joeynmt tied and scaled": (make_joey, {"tied": True, "scale": True, "layers": 2}),
    "opennmt": (make_onmt, {}),
    "opennmt one direction": (make_onmt, {"encoder": "rnn", "function": "sparsemax"}),
    "opennmt three layers": (make_onmt, {"rnn": "GRU", "layers": 3, "bridge": True}),
    "opennmt mlp": (make_onmt, {"encoder": "rnn", "rnn": "GRU", "attention": "mlp", "layers": 1}),
    "opennmt dot": (make_onmt, {"attention": "dot", "feed": 0, "bridge": True}),
    "opennmt gru": (make_onmt, {"rnn": "GRU", "feed": 0, "bridge": True}),
    "fairseq": (
        make_fairseq,
        {"bidirectional": True, "layers": 2, "projected": True, "shared": False},
    ),
    "fairseq one direction": (
        make_fairseq,
        {"bidirectional": False, "layers": 1, "projected": False, "shared": True},
    ),
    "fairseq two widths": (
        make_fairseq,
        {"bidirectional": True, "layers": 1, "projected": False, "shared": True, "widths": (3, 6)},
    ),
}


@pytest.fixture(params=CASES)
def pair(request, tmp_path):
    """A PyTorch model and the imported one."""
    make, options = CASES[request.param]
    return make(tmp_path, **options)


def test_step_probabilities_and_translations_equal_those_of_pytorch(pair):
    model, imported = pair
    outputs = [model.greedy(text.split(), STEPS) for text in TEXTS]
    firsts = np.array([model.log_probs(text.split(), [])[0] for text in TEXTS])
    assert np.abs(firsts[1:] - firsts[0]).max(axis=1).min() > 1e-2  # they depend on the source
    inputs = {
        "source": pad([imported.tokenizer.encode_source(text) for text in TEXTS]),
        "target": pad(
            [[2, *imported.tokenizer.encode_target(" ".join(each))[:-1]] for each in outputs]
        ),
    }
    actual = numpy(keras.ops.log_softmax(imported(inputs)))
    for row, (text, output) in enumerate(zip(TEXTS, outputs, strict=True)):
        expected = model.our_order(model.log_probs(text.split(), output))
        np.testing.assert_allclose(actual[row, : len(output) + 1], expected, rtol=1e-4, atol=1e-4)
    translations = imported.translate(TEXTS, search=GreedySearch(), max_length=STEPS)
    joined = [" ".join(each).replace("@@ ", "").removesuffix("@@") for each in outputs]
    assert [translation.text for translation in translations] == joined


def test_tied_embeddings_stay_tied(tmp_path):
    _, tied = make_joey(tmp_path / "tied", tied=True)
    _, scaled = make_joey(tmp_path / "scaled", tied=True, scale=True)
    assert (tied.tie_embeddings, scaled.tie_embeddings) == (True, False)


# --- What cannot be imported ----------------------------------------------------------------------


def refused(match, function, *arguments):
    with pytest.raises(ValueError, match=match):
        function(*arguments)


def test_all_unsupported_options_are_named_at_once(tmp_path):
    config = joey_config()
    model = write_joey(tmp_path / "joey", config)
    config["encoder"] |= {"type": "transformer"}
    config["decoder"] |= {"attention": "monotonic", "init_hidden": "mean"}
    write_joey(tmp_path / "joey", config, model)
    refused(
        "encoder type 'transformer'; decoder attention 'monotonic'; decoder init_hidden 'mean'",
        import_joeynmt,
        tmp_path / "joey",
    )
    checkpoint = OpenNMT(onmt_options()).checkpoint()
    vars(checkpoint["opt"]).update(
        encoder_type="ggnn", rnn_type="SRU", coverage_attn=True, copy_attn=True, dec_layers=1
    )
    checkpoint["vocab"]["src_feats"] = [["<unk>"]]
    torch.save(checkpoint, tmp_path / "model.pt")
    refused(
        "encoder_type 'ggnn'; rnn_type 'SRU'; coverage_attn True; copy_attn True; enc_layers 2 and "
        "dec_layers 1; src_feats",
        import_opennmt,
        tmp_path / "model.pt",
    )
    fairseq = Fairseq(bidirectional=False, layers=1, projected=False, shared=False)
    checkpoint = fairseq.checkpoint()
    checkpoint["cfg"]["model"].arch = "transformer"
    checkpoint["model"]["decoder.adaptive_softmax.head.weight"] = torch.zeros(2)
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    refused(
        "arch 'transformer'; adaptive_softmax_cutoff",
        import_fairseq,
        tmp_path / "checkpoint.pt",
        write_dictionaries(tmp_path, fairseq),
    )


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_a_checkpoint_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(OpenNMT(onmt_options()).checkpoint() | {"optim": RunsCode()}, "model.pt")
    refused("only tensors, plain values and .* contains .*mkdir", import_opennmt, "model.pt")
    assert not os.path.exists("ran")


def test_weights_that_do_not_fit_are_named(tmp_path):
    path, model = tmp_path / "model.pt", OpenNMT(onmt_options())
    checkpoint = model.checkpoint()
    checkpoint["model"]["encoder.extra.weight"] = torch.zeros(3)
    torch.save(checkpoint, path)
    refused("has other weights: encoder.extra.weight", import_opennmt, path)
    checkpoint = model.checkpoint()
    checkpoint["vocab"]["tgt"] = model.pieces[1][:-1]
    torch.save(checkpoint, path)
    refused("10 rows in generator.weight and a vocabulary of 9 pieces", import_opennmt, path)
    checkpoint = model.checkpoint()
    checkpoint["opt"].rnn_type = "GRU"
    torch.save(checkpoint, path)
    refused("weights of encoder.rnn that are not those of a gru", import_opennmt, path)
    checkpoint = model.checkpoint()
    del checkpoint["model"]["decoder.attn.linear_in.weight"]
    torch.save(checkpoint, path)
    refused("no weight decoder.attn.linear_in.weight", import_opennmt, path)


def test_missing_and_unreadable_files_are_named(tmp_path):
    refused("has no config.yaml", import_joeynmt, tmp_path)
    refused("'.*model.pt', which does not exist", import_opennmt, tmp_path / "model.pt")
    (tmp_path / "model.pt").write_text("no checkpoint")
    refused("which is incomplete or another file", import_opennmt, tmp_path / "model.pt")
    (tmp_path / "dict.txt").write_text("a 7\nb\n")
    torch.save({"model": {}, "args": argparse.Namespace(arch="lstm")}, tmp_path / "checkpoint.pt")
    files = tmp_path / "checkpoint.pt", [tmp_path / "dict.txt"]
    refused("dict.txt, line 2: expected a piece and its count", import_fairseq, *files)
    refused("`dictionaries` must be one or two files", import_fairseq, files[0], [])


# --- The command ----------------------------------------------------------------------------------


def invoke(*arguments):
    return typer.testing.CliRunner().invoke(app, ["import", *map(str, arguments)])


def test_the_command_writes_a_run(tmp_path):
    model = write_joey(tmp_path / "joey", joey_config())
    result = invoke("joeynmt", tmp_path / "joey", "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert os.listdir(tmp_path / "run") == ["best.keras"]
    text = TEXTS[0]
    [translation] = load_best(tmp_path / "run").translate(
        [text], search=GreedySearch(), max_length=STEPS
    )
    expected = " ".join(model.greedy(text.split(), STEPS))
    assert translation.text == expected.replace("@@ ", "").removesuffix("@@")


def test_an_imported_run_is_fine_tuned(tmp_path):
    write_joey(tmp_path / "joey", joey_config())
    result = invoke("joeynmt", tmp_path / "joey", "-o", tmp_path / "run")
    assert result.exit_code == 0, result.output
    (tmp_path / "texts").write_text("\n".join(TEXTS * 4) + "\n", encoding="utf-8")
    options = TrainingOptions(
        tmp_path / "texts",
        tmp_path / "texts",
        validation_source=tmp_path / "texts",
        validation_target=tmp_path / "texts",
        init=tmp_path / "run",
        freeze="encoder",
        epochs=1,
        dtype_policy="float32",
    )
    best = train(options, tmp_path / "adapted", verbose=False)
    before, after = (keras.saving.load_model(path) for path in (tmp_path / "run/best.keras", best))
    for layer, is_equal in (("encoder", True), ("decoder", False)):
        pairs = zip(
            *(getattr(model, layer).get_weights() for model in (before, after)), strict=True
        )
        assert all(np.array_equal(*pair) for pair in pairs) == is_equal
