"""Imported models against plain PyTorch models with the weights' names of each toolkit."""

import argparse
import copy
import json
import os
import re
import zipfile

import click.testing
import keras
import numpy as np
import pytest
import torch
from layer_checks import numpy
from torch_models import CopyingOpenNMT, Fairseq, Joey, OpenNMT

from keras_bahdanau import GreedySearch
from keras_bahdanau.toolkits import import_fairseq, import_joeynmt, import_opennmt
from keras_bahdanau.training.options import TrainingOptions
from keras_bahdanau.training.run import load_best, train
from keras_bahdanau_cli.app import app
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
        "copy_attn": options.get("copy", False),
        "copy_attn_type": options.get("copy_attention"),
        "copy_attn_force": True,
        "copy_loss_by_seqlength": True,
        "reuse_copy_attn": options.get("reuse", False),
        "generator_function": options.get("generator", "softmax"),
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


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (7, {"copy_attention": "mlp", "function": "sparsemax", "generator": "sparsemax"}),
        (3, {"rnn": "GRU", "attention": "mlp", "reuse": True}),
    ],
    ids=["own attention", "attention of the decoder"],
)
def test_copied_words_equal_those_of_pytorch(tmp_path, seed, options):
    model = CopyingOpenNMT(onmt_options(layers=1, copy=True, **options), seed)
    with torch.no_grad():
        model.generator.linear_copy.bias.fill_(1.0)
    torch.save(model.checkpoint(), tmp_path / "model.pt")
    imported = import_opennmt(tmp_path / "model.pt")
    # "zoo" is unknown to the encoder but a target piece. "the" and "sees" are only source pieces,
    # and "rex" and "ada" are none.
    texts = ["rex sees the zoo a rex ada", "a dog the zoo", "zoo", "ada rex"]
    outputs = [model.greedy(text.split(), STEPS) for text in texts]
    copied = {word for output in outputs for word in output} - {*model.pieces[1]}
    assert copied & {"the", "sees"} and copied & {"rex", "ada"}
    tokenizer = imported.tokenizer
    inputs = {
        "source": pad([tokenizer.encode_source(text) for text in texts]),
        "target": pad(
            [
                [2, *tokenizer.encode_target(" ".join(output), text)[:-1]]
                for text, output in zip(texts, outputs, strict=True)
            ]
        ),
    }
    actual = numpy(keras.ops.softmax(imported(inputs)))
    for row, (text, output) in enumerate(zip(texts, outputs, strict=True)):
        expected = np.exp(model.our_order(model.log_probs(text.split(), output)))
        used, others = np.split(actual[row, : len(output) + 1], [expected.shape[1]], axis=1)
        np.testing.assert_allclose(used, expected, rtol=1e-4, atol=1e-6)
        assert others.max() < 1e-6
    translations = imported.translate(texts, search=GreedySearch(), max_length=STEPS)
    joined = [" ".join(output).replace("@@ ", "").removesuffix("@@") for output in outputs]
    assert [translation.text for translation in translations] == joined


def test_tied_embeddings_stay_tied(tmp_path):
    _, tied = make_joey(tmp_path / "tied", tied=True)
    _, scaled = make_joey(tmp_path / "scaled", tied=True, scale=True)
    assert (tied.tie_embeddings, scaled.tie_embeddings) == (True, False)


def test_fairseq_dictionaries_are_read_as_by_fairseq(tmp_path):
    """Flags, counts of any sign, spaces, line ends and marks as in `Dictionary.add_from_file`."""
    lines = "a -7\r\nred 1_0 \u3000\nca@@ 7\nt 7\rsees 0\nthe 7\ndog 7\n"
    extra = "red 3 #fairseq:overwrite\n<unk> 1 #fairseq:overwrite \n two words 1\n"
    model = make_fairseq_with(tmp_path, "\ufeffnever 5\n" + lines + extra)
    imported = import_fairseq(tmp_path / "checkpoint.pt", [tmp_path / "dict.txt"])
    text = "\ufeffnever a red ca@@ t sees the dog red <unk> never"
    # Our ids from 4 on have the order of the lines. "red" is that of line 9.
    expected = [4, 5, 12, 7, 8, 9, 10, 11, 12, 13, 1, 3]
    assert imported.tokenizer.encode_source(text) == expected
    assert imported.tokenizer.decode([6]) == imported.tokenizer.decode([12]) == "red"
    embedding = imported.target_embedding.get_weights()[0]
    np.testing.assert_array_equal(embedding[4:], model["decoder.embed_tokens.weight"][4:])


def make_fairseq_with(folder, dictionary):
    """Write a checkpoint and a joint dictionary of 11 lines, and return the weights."""

    class Larger(Fairseq):
        pieces = (Fairseq.pieces[0] + list("1234"),) * 2

    model = Larger(bidirectional=True, layers=1, projected=False, shared=True)
    (folder / "dict.txt").write_bytes(dictionary.encode())
    torch.save(model.checkpoint(), folder / "checkpoint.pt")
    return model.state_dict()


def test_joeynmt_vocabularies_are_read_as_by_joeynmt(tmp_path):
    """Special pieces come first, repeated lines count once, and an empty line is a piece."""
    model = write_joey(tmp_path / "joey", joey_config())
    text = "a\r\nred\nca@@\na\n\n</s>\nsees\x0bthe\ndog"
    (tmp_path / "joey/src_vocab.txt").write_bytes(text.encode())
    tokenizer = import_joeynmt(tmp_path / "joey").tokenizer
    assert tokenizer.encode_source("a red ca@@ sees the dog") == [4, 5, 6, 8, 9, 10, 3]
    assert len(model.pieces[0]) == tokenizer.source_vocabulary_size == 11


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_files_of_old_versions_and_other_types_have_the_same_weights(tmp_path, dtype):
    checkpoint = OpenNMT(onmt_options()).checkpoint()
    state = checkpoint["model"] = {n: w.to(dtype) for n, w in checkpoint["model"].items()}
    torch.save(checkpoint, tmp_path / "model.pt", _use_new_zipfile_serialization=False)
    model = import_opennmt(tmp_path / "model.pt")
    weight = state["decoder.embeddings.make_embedding.emb_luts.0.weight"].float().numpy()
    np.testing.assert_array_equal(model.target_embedding.get_weights()[0][4:], weight[4:])


# --- Raw texts ------------------------------------------------------------------------------------

# Merges that split "cat" into "ca@@ t", "Kater" into "Kat@@ er" and make no other word smaller.
SOURCE_MERGES = "c a|r e|re d</w>|s e|se e|see s</w>|t h|th e</w>|d o|do g</w>"
TARGET_MERGES = (
    "K a|Ka t|e r</w>|e i|ei n</w>|r o|ro t|rot er</w>|s i|si e|sie h|sieh t</w>|d e|de n</w>"
)
RAW = [text.replace("@@ ", "") for text in TEXTS]


def write_codes(path, merges):
    path.write_text("\n".join(["#version: 0.2", *merges.split("|"), ""]), encoding="utf-8")
    return path


def translations(model, texts):
    found = model.translate(texts, search=GreedySearch(), max_length=STEPS)
    return [(each.text, each.tokens, each.source_tokens) for each in found]


def check_raw_texts(raw, split):
    """Raw texts have the ids and translations of split ones."""
    assert raw.tokenizer.encode_sources(RAW) == split.tokenizer.encode_sources(TEXTS)
    assert translations(raw, RAW) == translations(split, TEXTS)


def test_opennmt_models_with_codes_take_raw_texts(tmp_path):
    _, split = make_onmt(tmp_path)
    source = write_codes(tmp_path / "codes.en", SOURCE_MERGES)
    target = write_codes(tmp_path / "codes.de", TARGET_MERGES)
    raw = import_opennmt(tmp_path / "model.pt", source, str(target))
    check_raw_texts(raw, split)
    targets = ["roter Kater sieht den", "ein Kater"]
    pieces = [text.replace("Kater", "Kat@@ er") for text in targets]
    assert raw.tokenizer.encode_targets(targets) == split.tokenizer.encode_targets(pieces)


def test_files_that_the_options_name_split_texts(tmp_path, caplog):
    """The file is in the folder of the checkpoint, or at the path of the options."""
    caplog.set_level("INFO", "keras_bahdanau")
    model = OpenNMT(onmt_options())
    checkpoint = model.checkpoint()
    target = write_codes(tmp_path / "codes.de", TARGET_MERGES)
    corpora = {"all": {"transforms": ["bpe", "filtertoolong", "onmt_tokenize"]}, "valid": {}}
    files = {"src_subword_model": "elsewhere/codes.en", "tgt_subword_model": str(target)}
    vars(checkpoint["opt"]).update(transforms=["filtertoolong"], data=corpora, **files)
    (tmp_path / "onmt").mkdir()
    torch.save(checkpoint, tmp_path / "onmt/model.pt")
    split = import_opennmt(tmp_path / "onmt/model.pt", target_tokenizer="none")
    assert [record.getMessage() for record in caplog.records] == [
        "The transforms of OpenNMT-py are filtertoolong, bpe, onmt_tokenize.",
        "Source texts must be split as OpenNMT-py did, by elsewhere/codes.en. For raw texts pass "
        "this file as --source-tokenizer.",
        "OpenNMT-py also changed them by onmt_tokenize. Change them as well.",
        f"Target texts must be split as OpenNMT-py did, by {target}. For raw texts pass this file "
        "as --target-tokenizer.",
        "OpenNMT-py also changed them by onmt_tokenize. Change them as well.",
    ]
    source = write_codes(tmp_path / "onmt/codes.en", SOURCE_MERGES)
    caplog.clear()
    raw = import_opennmt(tmp_path / "onmt/model.pt")
    assert f"Source texts are raw: {source} splits them." in caplog.messages
    assert f"Target texts are raw: {target} splits them." in caplog.messages
    check_raw_texts(raw, split)


def test_joeynmt_and_fairseq_models_name_the_files_of_their_texts(tmp_path, caplog):
    caplog.set_level("INFO", "keras_bahdanau")
    config = joey_config()
    write_joey(tmp_path / "joey", config)
    split = import_joeynmt(tmp_path / "joey")
    for name, merges in (("codes.en", SOURCE_MERGES), ("codes.de", TARGET_MERGES)):
        write_codes(tmp_path / "joey" / name, merges)
    kind = {"level": "bpe", "tokenizer_type": "subword-nmt"}
    sides = {
        side: kind | {"tokenizer_cfg": {"codes": f"data/{name}", "pretokenizer": "none"}}
        for side, name in (("src", "codes.en"), ("trg", "codes.de"))
    }
    sides["src"] |= {"lowercase": True}
    (tmp_path / "joey/config.yaml").write_text(json.dumps({"model": config, "data": sides}))
    check_raw_texts(import_joeynmt(tmp_path / "joey"), split)
    assert "JoeyNMT also changed them by lowercase. Change them as well." in caplog.messages

    model = Fairseq(bidirectional=False, layers=1, projected=False, shared=False)
    checkpoint = model.checkpoint()
    codes = write_codes(tmp_path / "codes", SOURCE_MERGES)
    checkpoint["cfg"] |= {"bpe": {"_name": "subword_nmt", "bpe_codes": str(codes)}}
    checkpoint["cfg"] |= {"tokenizer": {"_name": "moses"}}
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    files = tmp_path / "checkpoint.pt", write_dictionaries(tmp_path, model)
    raw = import_fairseq(*files, target_tokenizer="none")
    check_raw_texts(raw, import_fairseq(*files, "none", "none"))
    assert "fairseq also changed them by tokenizer 'moses'. Change them as well." in caplog.messages


def test_files_that_cannot_split_texts_are_refused(tmp_path):
    make_onmt(tmp_path)
    path = tmp_path / "model.pt"
    refused("`source_tokenizer` must be a SentencePiece model", import_opennmt, path, "no.model")
    (tmp_path / "spm.model").write_bytes(b"\x0a\xff")
    message = "spm.model: expected a SentencePiece model.* Pass `none` as the tokenizer"
    refused(message, import_opennmt, path, "none", tmp_path / "spm.model")
    codes = write_codes(tmp_path / "codes", SOURCE_MERGES)
    copying = CopyingOpenNMT(onmt_options(layers=1, copy=True, copy_attention="mlp"))
    torch.save(copying.checkpoint(), path)
    refused("must be none for a model with copy_attn", import_opennmt, path, codes)


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
        encoder_type="ggnn",
        rnn_type="SRU",
        coverage_attn=True,
        copy_attn=True,
        copy_attn_type="none",
        dec_layers=1,
    )
    checkpoint["vocab"]["src_feats"] = [["<unk>"]]
    torch.save(checkpoint, tmp_path / "model.pt")
    refused(
        "encoder_type 'ggnn'; rnn_type 'SRU'; coverage_attn True; copy_attn_type 'none'; "
        "enc_layers 2 and dec_layers 1; src_feats",
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


NAN, LARGE = float("nan"), 1e39


@pytest.mark.parametrize("value", [NAN, LARGE, -float("inf")])
def test_weights_that_are_not_finite_are_named(tmp_path, value):
    checkpoint = OpenNMT(onmt_options()).checkpoint()
    checkpoint["generator"]["bias"] = checkpoint["generator"]["bias"].double()
    checkpoint["generator"]["bias"][3] = value
    torch.save(checkpoint, tmp_path / "model.pt")
    refused("NaN or infinity in the weight generator.bias", import_opennmt, tmp_path / "model.pt")


def test_sums_of_weights_that_overflow_are_refused(tmp_path):
    checkpoint = OpenNMT(onmt_options()).checkpoint()
    for part in ("ih", "hh"):
        checkpoint["model"][f"encoder.rnn.bias_{part}_l0"][0] = 3e38
    torch.save(checkpoint, tmp_path / "model.pt")
    refused("finite numbers.*infinity in the weight .*bias", import_opennmt, tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", [1], "`path` must have a mapping as model. Received: .*config.yaml', .* a list"),
        ("data", "abc", "must have a mapping as data. .* has 'abc'"),
        ("model.decoder", 3, "must have a mapping as model.decoder. .* has 3"),
        ("model.encoder.embeddings", [], "a mapping as model.encoder.embeddings"),
        ("model.encoder.embeddings.scale", "x", "true or false as model.encoder.embeddings.scale"),
        ("model.tied_softmax", None, "true or false as model.tied_softmax"),
        ("data.special_symbols.unk_token", 1, "text as data.special_symbols.unk_token"),
        ("data.special_symbols.lang_tags", [1], r"text as data.special_symbols.lang_tags\[0\]"),
    ],
)
def test_fields_of_a_configuration_are_checked(tmp_path, field, value, message):
    config = {"data": {"special_symbols": {}}, "model": joey_config()}
    write_joey(tmp_path, config["model"])
    *parents, name = field.split(".")
    part = config
    for parent in parents:
        part = part[parent]
    part[name] = value
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    refused(message, import_joeynmt, tmp_path)


def test_an_empty_section_of_a_configuration_has_the_defaults(tmp_path):
    config = joey_config()
    write_joey(tmp_path, config)
    config["encoder"]["embeddings"] = None
    (tmp_path / "config.yaml").write_text(json.dumps({"model": config, "data": None}))
    assert import_joeynmt(tmp_path).source_vocabulary_size == 11


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model", [1], "`path` must have a mapping as model. Received: .*, which has a list"),
        ("vocab", "abc", "a mapping as vocab"),
        ("vocab", {"src": [["a"]], "tgt": []}, r"text as vocab.src\[0\]"),
        ("opt", [1], "a mapping as opt"),
        ("opt", argparse.Namespace(rnn_type={}), "rnn_type a dict"),
        ("optim", {(1, 2): 3}, "a key of type tuple"),
    ],
)
def test_fields_of_a_checkpoint_are_checked(tmp_path, name, value, message):
    torch.save(OpenNMT(onmt_options()).checkpoint() | {name: value}, tmp_path / "model.pt")
    refused(message, import_opennmt, tmp_path / "model.pt")


@pytest.mark.parametrize("shape", [(), (0,), (6, 0), (7, 6), (6, 6, 1)])
def test_shapes_of_weights_are_checked_by_name(tmp_path, shape):
    checkpoint = OpenNMT(onmt_options()).checkpoint()
    name = "decoder.attn.linear_in.weight"
    checkpoint["model"][name] = torch.zeros(shape)
    torch.save(checkpoint, tmp_path / "model.pt")
    message = f"a weight {name} of shape {shape} instead of (6, 6)"
    refused(re.escape(message), import_opennmt, tmp_path / "model.pt")


@pytest.mark.parametrize("is_legacy", [False, True])
def test_a_negative_view_is_refused(tmp_path, is_legacy):
    """Its storage has the numbers with the other sign."""
    checkpoint = OpenNMT(onmt_options()).checkpoint()
    checkpoint["model"]["decoder.attn.linear_in.weight"] = torch._neg_view(torch.eye(6))
    path = tmp_path / "model.pt"
    torch.save(checkpoint, path, _use_new_zipfile_serialization=not is_legacy)
    refused("a tensor with metadata, such as a negative", import_opennmt, path)


@pytest.mark.parametrize("value", [None, torch.zeros(24).to_sparse(), 1.5])
def test_a_weight_that_may_be_missing_has_the_form_of_a_tensor(tmp_path, value):
    model = Fairseq(bidirectional=True, layers=1, projected=False, shared=False)
    checkpoint = model.checkpoint()
    name = "decoder.encoder_hidden_proj.bias"
    assert name in checkpoint["model"]
    checkpoint["model"][name] = value
    torch.save(checkpoint, tmp_path / "model.pt")
    message = f"a weight {name} of another form"
    refused(message, import_fairseq, tmp_path / "model.pt", write_dictionaries(tmp_path, model))


def test_names_of_other_weights_are_short_and_on_one_line(tmp_path):
    checkpoint = OpenNMT(onmt_options()).checkpoint()
    checkpoint["model"] |= {"a\nb": torch.eye(6), "x" * 10_000: torch.eye(6)}
    torch.save(checkpoint, tmp_path / "model.pt")
    message = r"other weights: a\\nb, x{80}$"
    refused(message, import_opennmt, tmp_path / "model.pt")


def write_zip(path, pickled, storages=(), method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pickled + b".")
        for key, contents in enumerate(storages):
            archive.writestr(f"archive/data/{key}", contents)


NESTED_KEY = b"K\x01q\x00" + b"h\x00h\x00\x86q\x00" * 200
PICKLES = {
    "an array of bytes": (b"}X\1\0\0\0ac__builtin__\nbytearray\nJ\0\0\0\x70\x85Rs", "no list of"),
    "a nested key": (b"}(" + NESTED_KEY[:-2] + b"q\x01K\x01u", "items of|a key of type tuple"),
    "a long text": (b"}X\xff\xff\xff\xffabc", "incomplete"),
    "too many operations": (b"(" * (2**22 + 1), "more than 4194304 operations"),
    "a persistent id": (b"}K\x01Q", "a reference to another value"),
    "no values": (b"s", "an operation without its values"),
    "another operation": (b"I1\n", "the operation INT"),
    "a recursive list": (b"}X\5\0\0\0model]q\0h\0as", "a mapping as model. .* has a list"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_of_strangers_are_refused_in_bounded_time_and_memory(tmp_path, name):
    pickled, message = PICKLES[name]
    write_zip(tmp_path / "model.pt", pickled)
    refused(message, import_opennmt, tmp_path / "model.pt")


def test_declared_sizes_are_compared_with_the_file(tmp_path):
    path, checkpoint = tmp_path / "model.pt", OpenNMT(onmt_options()).checkpoint()
    expanded = torch.zeros(1, dtype=torch.float16).expand(3_000_000_000)
    torch.save(checkpoint | {"optim": expanded}, path)
    refused("more numbers than its storage of 1", import_opennmt, path)
    name = "decoder.attn.linear_out.weight"  # NumPy cannot count the bytes of this stride
    wide = checkpoint["model"] | {name: torch.zeros(6).as_strided((1, 6), (2**62, 1))}
    torch.save(checkpoint | {"model": wide}, path)
    refused("a tensor of an invalid shape", import_opennmt, path)
    torch.save({"model": {"a": torch.zeros(2**20)}}, path)
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read("model/data.pkl")[2:-1]
    write_zip(path, pickled, [bytes(2**22)], zipfile.ZIP_DEFLATED)
    refused("a storage of 1048576 numbers", import_opennmt, path)
    write_zip(path, pickled, [bytes(2**22 - 4), bytes(8)])
    refused("does not have 4194304 bytes", import_opennmt, path)
    write_zip(path, b"}" * 2**20, method=zipfile.ZIP_DEFLATED)
    refused("`path` must be a recurrent model", import_opennmt, path)


def test_storages_that_overlap_in_a_zip_file_are_refused(tmp_path):
    path = tmp_path / "model.pt"
    large = torch.zeros(2**16)
    torch.save({"model": {str(index): large.clone()[:1] for index in range(9)}}, path)
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read("model/data.pkl")[2:-1]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pickled + b".")
        archive.writestr("archive/data/0", bytes(2**18))
        for index in range(1, 9):
            copy = copy_info(archive.NameToInfo["archive/data/0"], f"archive/data/{index}")
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
    refused("whose weights have 2359296 bytes and the file", import_opennmt, path)


def copy_info(info, name):
    """A directory entry of another name for the same bytes of a zip file."""
    copied = copy.copy(info)
    copied.filename = name
    return copied


def test_many_layers_are_refused(tmp_path):
    checkpoint = OpenNMT(onmt_options(layers=17)).checkpoint()
    torch.save(checkpoint, tmp_path / "model.pt")
    refused("more than 16 layers", import_opennmt, tmp_path / "model.pt")


def test_a_damaged_storage_is_found(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(OpenNMT(onmt_options()).checkpoint(), path)
    contents = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        offset = archive.getinfo("model/data/0").header_offset
    contents[offset + 200] ^= 1
    path.write_bytes(contents)
    refused("which is damaged: .*'model/data/0'", import_opennmt, path)


def test_missing_and_unreadable_files_are_named(tmp_path):
    refused("has no config.yaml", import_joeynmt, tmp_path)
    refused("'.*model.pt', which does not exist", import_opennmt, tmp_path / "model.pt")
    (tmp_path / "model.pt").write_text("no checkpoint")
    refused("which is incomplete or another file", import_opennmt, tmp_path / "model.pt")
    (tmp_path / "dict.txt").write_text("a 7\nb\n")
    torch.save({"model": {}, "args": argparse.Namespace(arch="lstm")}, tmp_path / "checkpoint.pt")
    files = tmp_path / "checkpoint.pt", [tmp_path / "dict.txt"]
    refused("dict.txt, line 2: expected a piece and its count", import_fairseq, *files)
    for line in ("b x", "b 1.5", "1", "b 7 #fairseq:other", "b #fairseq:overwrite"):
        (tmp_path / "dict.txt").write_text(f"a 7\n{line}\n")
        refused("dict.txt, line 2: expected a piece and its count", import_fairseq, *files)
    (tmp_path / "dict.txt").write_text("a 7\na 7\n")
    refused("dict.txt, line 2: expected another piece .* flag", import_fairseq, *files)
    (tmp_path / "dict.txt").write_bytes(b"a 7\n\xff 7\n")
    refused("dict.txt, line 2: not UTF-8", import_fairseq, *files)
    refused("`dictionaries` must be one or two files", import_fairseq, files[0], [])


# --- The command ----------------------------------------------------------------------------------


def invoke(*arguments):
    return click.testing.CliRunner().invoke(app, ["import", *map(str, arguments)])


def test_the_command_writes_a_run(tmp_path):
    model = write_joey(tmp_path / "joey", joey_config())
    codes = write_codes(tmp_path / "codes", SOURCE_MERGES)
    result = invoke(
        "joeynmt", tmp_path / "joey", "-o", tmp_path / "run", "--source-tokenizer", codes
    )
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert f"Source texts are raw: {codes} splits them." in lines
    assert "Target texts must be split as for JoeyNMT." in lines
    assert sorted(os.listdir(tmp_path / "run")) == ["best.keras", "tokenizer.json"]
    text = TEXTS[0]
    [translation] = load_best(tmp_path / "run").translate(
        [RAW[0]], search=GreedySearch(), max_length=STEPS
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
