"""Model cards: the text for runs and manifests of each kind, and the card of an artifact."""

import json
import shutil

import huggingface_hub
import pytest
import yaml

from keras_bahdanau_export import ModelCard
from keras_bahdanau_export.options import ExportOptions
from keras_bahdanau_runtime.manifest import read_manifest

FILES = ["model.onnx", "tokenizer.json"]
OPTIONS = {
    "source": "/home/somebody/train.en.gz",
    "target": "/home/somebody/train.de.gz",
    "validation_source": ["dev.en", "news.en"],
    "validation_target": ["dev.de", "news.de"],
    "model": "rnnsearch",
    "units": 1024,
    "best_by": "bleu",
}
HISTORY = """epoch,update,loss,val_bleu,val_chrf,val2_bleu
1,100,3.5,20.25,40.5,10.125
2,200,2.5,31.123,51.0,15.5
3,300,1.5,30.5,52.0,16.5
"""


@pytest.fixture
def make_run(tmp_path):
    """A function that writes the files of a run; `None` leaves one out."""

    def make_run(name="run", options=OPTIONS, history=HISTORY, best=b"best", average=None):
        folder = tmp_path / name
        folder.mkdir()
        contents = {
            "options.json": None if options is None else json.dumps(options).encode(),
            "history.csv": None if history is None else history.encode(),
            "best.keras": best,
            "average.keras": average,
        }
        for file, data in contents.items():
            if data is not None:
                (folder / file).write_bytes(data)
        return folder

    return make_run


def header(text):
    return yaml.safe_load(text.split("---\n")[1])


def rows(text):
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {name: value for name, *values in lines for value in values[:1]}


def card(manifest=None, files=FILES, **arguments):
    return ModelCard(**arguments).text("en-de", manifest or {}, files)


def test_the_metadata_is_that_of_the_hub(make_run, tmp_path):
    (tmp_path / "README.md").write_text(card(runs=[make_run()], license="cc-by-4.0"), "utf-8")
    data = huggingface_hub.ModelCard.load(tmp_path / "README.md").data
    assert data.language == ["en", "de"]
    assert (data.license, data.library_name) == ("cc-by-4.0", "keras-bahdanau")
    assert data.pipeline_tag == "translation" and "translation" in data.tags
    assert data.metrics == ["bleu", "chrf"]


def test_scores_are_those_of_the_best_checkpoint(make_run):
    table = rows(card(runs=[make_run()]))
    assert table["BLEU, dev.en and dev.de"] == "31.12"
    assert table["chrF, dev.en and dev.de"] == "51"
    assert table["BLEU, news.en and news.de"] == "15.5"
    history = "epoch,update,val_bleu,val_loss\n1,9,30,2.5\n2,18,20,1.25\n3,27,10,\n"
    by_loss = make_run("by-loss", {**OPTIONS, "best_by": "loss"}, history)
    table = rows(card(runs=[by_loss]))
    assert table["loss per token, dev.en and dev.de"] == "1.25"
    assert table["BLEU, dev.en and dev.de"] == "20"


def test_scores_of_checkpoints_are_not_those_of_their_mean(make_run):
    assert "31.12" in card(runs=[make_run("worse", average=b"the mean")])
    text = card(runs=[make_run("better", average=b"best")])
    assert "BLEU" not in text and "metrics" not in header(text)


def test_an_ensemble_has_the_scores_and_texts_of_every_run(make_run):
    other = {**OPTIONS, "source": "more.en", "target": "more.de"}
    runs = [make_run("a"), make_run("b", other, HISTORY.replace("31.123", "33.5"))]
    text = card(runs=runs)
    assert "| 31.12 |" in text and "| 33.5 |" in text
    assert "train.en.gz, train.de.gz" in text and "more.en, more.de" in text
    assert "somebody" not in text


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("train.en", "train.de", ["en", "de"]),
        ("a.b/x.no.xz", "train.de", ["no", "de"]),
        ("train.txt", "train.de", None),
        ("train.gz", "train.de", None),
        ("en", "de", None),
        (["a.en", "b.en"], ["a.de", "b.de"], ["en", "de"]),
        (["a.en", "b.fr"], ["a.de", "b.de"], None),
        ("corpus", None, None),
    ],
)
def test_languages_are_the_endings_of_the_texts(make_run, source, target, expected):
    run = make_run(options={**OPTIONS, "source": source, "target": target})
    text = card(runs=[run])
    assert header(text).get("language") == expected
    assert header(card(runs=[run], languages=["eng", "deu"]))["language"] == ["eng", "deu"]
    if expected is not None:
        assert f"translates from `{expected[0]}` to `{expected[1]}`" in text


def test_figures_of_the_manifest_are_tables():
    text = card(
        {
            "vocabulary": {"source": 8000, "target": 7000},
            "search": {"class": "BeamSearch", "size": 5, "normalization": "a|b\nc"},
            "parity": {"sentences": 16, "score_difference": 1.25e-6, "tf32": False},
            "precision": {"precision": "int8", "size": 0.2571, "bleu": 39.04, "bleu_loss": None},
        }
    )
    table = rows(text.replace("\\|", "!"))
    assert table["source vocabulary"] == "8,000" and table["search, size"] == "5"
    assert table["search, normalization"] == "a!b c"
    assert table["score difference"] == "1.25e-06" and table["tf32"] == "no"
    assert (table["size"], table["bleu"]) == ("0.2571", "39.04")
    assert "bleu loss" not in table and "Shortlist" not in text


def test_a_model_without_a_search_is_no_translation_model():
    text = card(files=["model.onnx"])
    assert header(text) == {"library_name": "keras-bahdanau"}
    assert "A Keras model" in text and "Translator" not in text


def test_notes_follow_the_introduction():
    text = card(notes="## Limits\n\nShort sentences only.\n\n")
    assert text.index("Keras.\n\n## Limits") < text.index("only.\n\n## Use\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"languages": ["en"]}, r"`languages` must be .*Received: \['en'\]"),
        ({"languages": ["en", "German"]}, "`languages` must be .*'German'"),
        ({"languages": "en"}, "`languages` must be a list of str"),
        ({"license": "Apache 2.0"}, "`license` must be an identifier .*'Apache 2.0'"),
        ({"license": "mit\ntags: [x]"}, "`license` must be an identifier"),
        ({"notes": None}, "`notes` must be a str"),
        ({"runs": ["no-such-run"]}, "`runs` must be folders .*'no-such-run'"),
    ],
)
def test_invalid_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ModelCard(**arguments)


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("options.json", b"[]"),
        ("options.json", b"{"),
        ("history.csv", b"epoch,val_bleu\n1,many\n"),
        ("history.csv", b"epoch,val_bleu\n1,\xff\n"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(make_run, name, contents):
    run = make_run()
    (run / name).write_bytes(contents)
    with pytest.raises(ValueError, match=f"run/{name}: "):
        card(runs=[run])


def test_an_export_takes_only_a_model_card():
    with pytest.raises(ValueError, match=r"`model_card` must be a ModelCard or None\. .*Tr"):
        ExportOptions(model_card=True)


def test_the_card_of_an_artifact_may_be_edited(artifact, tmp_path):
    folder = tmp_path / "artifact"
    shutil.copytree(artifact[0], folder)
    manifest = read_manifest(folder)
    text = (folder / "README.md").read_text("utf-8")
    assert "README.md" not in manifest.files
    assert header(text)["pipeline_tag"] == "translation" and header(text)["license"] == "mit"
    assert rows(text)["sentences"] == str(manifest.parity["sentences"])
    (folder / "README.md").write_text(text.replace("mit", "tim"), "utf-8")
    assert read_manifest(folder).files == manifest.files
