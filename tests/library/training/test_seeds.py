"""Several runs that differ only in their seed, and their ensemble."""

import dataclasses
import json

import command
import keras
import numpy as np
import pytest

from keras_bahdanau import TrainingOptions, train, train_seeds
from keras_bahdanau.data import PreparedCorpus
from keras_bahdanau.run_folder import best_file, member_runs
from keras_bahdanau.training.run import _evaluators, load_best
from keras_bahdanau.training.seeds import prepare_seeds

INFLECTIONS = [f"{word}\t{word}{end}\t{tag}" for word in ("ab", "ba", "abb") for end, tag in
               (("a", "N;PL"), ("b", "N;SG"))]  # fmt: skip
FLAGS = {
    **{"source-column": ["1", "3"], "target-column": "2", "tokenizer": "characters"},
    **{"units": 4, "embedding-dim": 3, "attention-units": 3, "epochs": 1, "batch-size": 3},
    **{"max-length": 8, "seed": 3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs from Python: their options, and their folder."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "a.tsv").write_text("".join(f"{line}\n" for line in INFLECTIONS))
    values = {name.replace("-", "_"): value for name, value in FLAGS.items()}
    texts = {"source": folder / "a.tsv", "validation_source": folder / "a.tsv"}
    options = TrainingOptions(**texts, **values)
    paths = train_seeds(options, folder / "run", seeds=2, verbose=False)
    assert paths == [folder / "run" / f"seed-{seed}" / "best.keras" for seed in (3, 4)]
    return options, folder / "run"


def weights(model):
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_a_run_of_several_is_the_run_of_its_seed(runs, tmp_path):
    _, folder = runs
    members = member_runs(folder)
    alone = TrainingOptions.from_file(members[1] / "options.json")
    assert (alone.seed, alone.source, alone.tokenizer) == (4, folder / "corpus", "auto")
    train(alone, tmp_path / "run", verbose=False)
    first, second, expected = (load_best(path) for path in (*members, tmp_path / "run"))
    for received, weight in zip(weights(second), weights(expected), strict=True):
        np.testing.assert_array_equal(received, weight)
    assert any(
        not np.array_equal(*pair) for pair in zip(weights(first), weights(second), strict=True)
    )


def test_the_folder_of_several_runs_is_their_ensemble(runs):
    _, folder = runs
    ensemble = load_best(folder)
    assert len(ensemble.models) == 2
    tokenizer = ensemble.tokenizer
    ids = [tokenizer.encode_source("ab\tN;PL")], [tokenizer.encode_target("aba")]
    scores = [load_best(path).score(*ids).log_probs for path in member_runs(folder)]
    averaged = ensemble.score(*ids).log_probs
    np.testing.assert_allclose(averaged, np.log(np.mean(np.exp(scores), 0)), rtol=1e-4)


def test_resuming_trains_only_the_runs_that_are_missing(runs, monkeypatch, capsysbinary, tmp_path):
    options, folder = runs
    before = [(path / "best.keras").stat().st_mtime_ns for path in member_runs(folder)]
    flags = [
        argument
        for name, value in FLAGS.items()
        for item in (value if isinstance(value, list) else [value])
        for argument in (f"--{name}", item)
    ]
    files = options.source, "--validation-source", options.source, "--output", folder
    status, _, error = command.run(
        monkeypatch, capsysbinary, "train", *files, *flags, "--seeds", 3, "--resume"
    )
    assert status == 0, error
    assert json.loads((folder / "seeds.json").read_bytes()) == [3, 4, 5]
    after = [best_file(path).stat().st_mtime_ns for path in member_runs(folder)]
    assert after[:2] == before and len(after) == 3
    names = "seed-3", "seed-4", "seed-5", "ensemble"
    for name in names:
        assert f" {name} exact " in error
    columns = "--source-column", "1", "--source-column", "3", "--target-column", "2"
    status, output, error = command.run(
        monkeypatch, capsysbinary, "evaluate", folder, options.source, *columns
    )
    assert status == 0 and "exact" in output, error


def test_unseen_tags_of_held_out_text_are_named(runs, caplog):
    options, folder = runs
    tokenizer = PreparedCorpus(folder / "corpus").tokenizer
    _evaluators(options, [(["ab\tN;PL", "ba\tN;SG"], ["aba", "bab"])], tokenizer)
    assert caplog.messages == []
    _evaluators(options, [(["ab\tN;DU", "ba\tN;DU"], ["aba", "bab"])], tokenizer)
    [message] = caplog.messages
    assert message.startswith("1 different symbols of `validation_source[0]`")
    assert message.endswith(": ';DU'.")


def test_runs_that_cannot_be_continued_or_joined_are_refused(runs, tmp_path):
    options, folder = runs
    with pytest.raises(ValueError, match="be the folder of one run; pass `seeds`"):
        train(options, folder, resume=True)
    with pytest.raises(ValueError, match="`output` must be a new folder"):
        train_seeds(options, folder, 2)
    single = member_runs(folder)[0]
    with pytest.raises(ValueError, match="`seeds` must be left out to continue a single run"):
        train_seeds(options, single, 2, resume=True)
    with pytest.raises(ValueError, match="`seeds` must be an int of at least 1"):
        train_seeds(options, tmp_path / "run", 0)
    with pytest.raises(ValueError, match="`seeds` must be 1 with several `devices`"):
        prepare_seeds(dataclasses.replace(options, devices=2), tmp_path / "run", 2, False)
    with pytest.raises(ValueError, match=r"`init` must be .* has several runs, such as .*seed-3"):
        best_file(folder, "init")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "seeds", "message"),
    [
        (
            {},
            1,
            r"`seed` and `seeds` must include all runs in .* Received: 3 and 1, without seed-4",
        ),
        ({"seed": 4}, 3, r"must include all runs in .* Received: 4 and 3, without seed-3"),
        ({"units": 9}, 4, "`options` must be those of the run in .*seed-3.* `units` was 4, is 9"),
    ],
)
def test_a_refused_continuation_leaves_the_ensemble_as_it_is(runs, changes, seeds, message):
    options, folder = runs
    members = member_runs(folder)
    with pytest.raises(ValueError, match=message):
        train_seeds(dataclasses.replace(options, **changes), folder, seeds, resume=True)
    assert member_runs(folder) == members


@pytest.mark.parametrize(
    ("text", "message"), [("[", "expected JSON"), ("[]", "a list of seeds"), ('["../x"]', "seeds")]
)
def test_damaged_lists_of_seeds_are_refused(tmp_path, text, message):
    (tmp_path / "seeds.json").write_text(text)
    with pytest.raises(ValueError, match=rf"seeds\.json: expected .*{message}|{message}"):
        member_runs(tmp_path)
