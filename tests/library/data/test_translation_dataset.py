import gzip
import logging
import pickle

import keras
import numpy as np
import pytest
from copy_task import Scores
from hypothesis import given
from hypothesis import strategies as st

from keras_bahdanau.data.translation_dataset import TranslationDataset
from keras_bahdanau_runtime.ids import BOS, EOS, PAD
from keras_bahdanau_runtime.text.batches import length_sorted_batches, pad
from keras_bahdanau_runtime.text.corpus import read_alignments

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=40)


def make(lengths, **kwargs):
    """Sources, targets and a data set of them. Each pair repeats a different token."""
    sources = [[10 + i] * (tx - 1) + [EOS] for i, (tx, _) in enumerate(lengths)]
    targets = [[10 + i] * (ty - 1) + [EOS] for i, (_, ty) in enumerate(lengths)]
    return sources, targets, TranslationDataset(sources, targets, **kwargs)


def pairs_of(dataset):
    """Check each batch of an epoch, and return the pairs without padding."""
    pairs = []
    for inputs, labels in dataset:
        source, target = inputs["source"], inputs["target"]
        assert source.dtype == target.dtype == labels.dtype == "int32"
        assert len(source) == len(target) == len(labels) == dataset.batch_size
        assert target.shape == labels.shape
        assert source.shape[1] % dataset.bucket == labels.shape[1] % dataset.bucket == 0
        assert (source.shape[1], labels.shape[1]) in dataset.shapes
        for row in range(dataset.batch_size):
            tx, ty = np.count_nonzero(source[row]), np.count_nonzero(labels[row])
            assert not source[row, tx:].any() and not labels[row, ty:].any()
            if ty == 0:
                assert tx == 0 and not target[row].any()
                continue
            expected = [BOS, *labels[row, : ty - 1]]
            assert target[row].tolist() == expected + [PAD] * (target.shape[1] - ty)
            pairs.append((tuple(source[row, :tx].tolist()), tuple(labels[row, :ty].tolist())))
    return pairs


@given(
    lengths=LENGTHS,
    batch_size=st.integers(1, 9),
    bucket=st.integers(1, 8),
    shuffle=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_an_epoch_has_every_pair_once(lengths, batch_size, bucket, shuffle, epoch):
    sources, targets, dataset = make(
        lengths, batch_size=batch_size, bucket=bucket, shuffle=shuffle, seed=1
    )
    shapes = dataset.shapes
    dataset.epoch = epoch
    expected = sorted((tuple(s), tuple(t)) for s, t in zip(sources, targets, strict=True))
    assert sorted(pairs_of(dataset)) == expected
    assert len(dataset) == -(-len(lengths) // batch_size)
    assert dataset.tokens == sum(ty for _, ty in lengths)
    assert dataset.shapes == shapes

    batch_shapes = [(inputs["source"].shape[1], labels.shape[1]) for inputs, labels in dataset]
    assert sorted(set(batch_shapes)) == shapes
    for axis in (0, 1):
        if len({shape[axis] for shape in batch_shapes}) > 1:
            assert batch_shapes[0][axis] != batch_shapes[1][axis]


def test_a_batch_of_one_pair_is_padded():
    dataset = TranslationDataset([[5, 6, EOS]], [[7, EOS]], batch_size=2, bucket=4)
    inputs, labels = dataset[0]
    assert inputs["source"].tolist() == [[5, 6, EOS, 0], [0, 0, 0, 0]]
    assert inputs["target"].tolist() == [[BOS, 7, 0, 0], [0, 0, 0, 0]]
    assert labels.tolist() == [[7, EOS, 0, 0], [0, 0, 0, 0]]
    assert dataset.tokens == 2 and dataset.shapes == [(4, 4)]


def some_lengths():
    rng = np.random.default_rng(0)
    return [(int(tx), int(ty)) for tx, ty in rng.integers(1, 60, (200, 2))]


def test_order_depends_only_on_seed_and_epoch():
    lengths = some_lengths()
    *_, dataset = make(lengths, batch_size=8, seed=3)
    first = pairs_of(dataset)
    assert first == pairs_of(dataset)
    dataset.on_epoch_end()
    assert dataset.epoch == 1
    second = pairs_of(dataset)
    assert second != first

    *_, resumed = make(lengths, batch_size=8, seed=3)
    resumed.epoch = 1
    assert pairs_of(resumed) == second
    assert pairs_of(pickle.loads(pickle.dumps(resumed))) == second
    *_, other_seed = make(lengths, batch_size=8, seed=9)
    assert pairs_of(other_seed) != first


def test_without_shuffling_every_epoch_has_the_same_order():
    *_, dataset = make(some_lengths(), batch_size=8, shuffle=False)
    first = pairs_of(dataset)
    dataset.on_epoch_end()
    assert pairs_of(dataset) == first
    widths = [labels.shape[1] for _, labels in dataset][2:]
    assert widths == sorted(widths, reverse=True)


def windows_of(dataset, batches):
    """The pairs of each group of `batches` consecutive batches."""
    pairs = pairs_of(dataset)
    size = batches * dataset.batch_size
    return [pairs[start : start + size] for start in range(0, len(pairs), size)]


def test_each_window_is_sorted_separately_and_in_order():
    # 200 pairs in windows of 48: four full windows and one of 8 pairs.
    sources, targets, dataset = make(
        some_lengths(), batch_size=8, sort_window=48, bucket=1, shuffle=False
    )
    pairs = [(tuple(s), tuple(t)) for s, t in zip(sources, targets, strict=True)]
    windows = windows_of(dataset, batches=6)
    assert [len(window) for window in windows] == [48, 48, 48, 48, 8]
    for start, window in zip(range(0, 200, 48), windows, strict=True):
        assert sorted(window) == sorted(pairs[start : start + 48])
    for window in windows[1:]:  # the first window starts with two batches of different shapes
        lengths = [len(target) for _, target in window]
        assert lengths == sorted(lengths, reverse=True)


def test_shuffling_once_gives_every_epoch_the_same_windows():
    lengths = some_lengths()
    *_, once = make(lengths, batch_size=8, sort_window=48, shuffle="once", seed=3)
    first = windows_of(once, batches=6)
    shapes = once.shapes
    once.on_epoch_end()
    assert windows_of(once, batches=6) == first and once.shapes == shapes
    *_, other_seed = make(lengths, batch_size=8, sort_window=48, shuffle="once", seed=4)
    *_, unshuffled = make(lengths, batch_size=8, sort_window=48, shuffle=False)
    for windows in (windows_of(other_seed, batches=6), windows_of(unshuffled, batches=6)):
        assert sorted(windows[0]) != sorted(first[0])
        assert {pair for window in windows for pair in window} == set(pairs_of(once))
    *_, reshuffled = make(lengths, batch_size=8, sort_window=48, seed=3)
    before = windows_of(reshuffled, batches=6)
    reshuffled.on_epoch_end()
    assert sorted(windows_of(reshuffled, batches=6)[0]) != sorted(before[0])


def test_similar_lengths_share_a_batch():
    lengths = [(n, n) for n in range(1, 33)] * 8
    *_, dataset = make(lengths, batch_size=16, bucket=8)
    assert dataset.shapes == [(8, 8), (16, 16), (24, 24), (32, 32)]


def test_long_sentences_are_cut_and_counted(caplog):
    with caplog.at_level(logging.WARNING, "keras_bahdanau"):
        dataset = TranslationDataset(
            [[5] * 9 + [EOS], [5, EOS]], [[6] * 4 + [EOS], [6] * 5 + [EOS]], max_length=4, bucket=1
        )
    assert [record.message for record in caplog.records] == [
        "Cut 1 of 2 sources and 2 of 2 targets to 4 ids."
    ]
    expected = [((5, 5, 5, EOS), (6, 6, 6, EOS)), ((5, EOS), (6, 6, 6, EOS))]
    assert sorted(pairs_of(dataset)) == sorted(expected)
    assert dataset.tokens == 8


@pytest.mark.parametrize(
    "change, message",
    [
        ({"targets": [[5, EOS]]}, "Received: 2 sources, 1 targets"),
        ({"sources": [], "targets": []}, "at least one pair"),
        ({"sources": None}, "`sources` must be a list of lists of ids. Received: None"),
        ({"batch_size": 0}, "`batch_size` must be an int of at least 1. Received: 0"),
        ({"batch_size": 2.0}, "`batch_size`"),
        ({"bucket": 0}, "`bucket`"),
        ({"max_length": 1}, "`max_length`"),
        ({"seed": -1}, "`seed`"),
        ({"shuffle": "twice"}, "`shuffle` must be True, False or \"once\". Received: 'twice'"),
        ({"sort_window": 0}, "`sort_window` must be an int of at least 64"),
        ({"sort_window": 100}, "`sort_window` must be a multiple of `batch_size`, 64.*=100"),
        ({"sources": [[5, EOS], []]}, r"`sources\[1\]` must hold at least one id"),
        ({"targets": [[5.0, EOS], [EOS]]}, r"`targets\[0\]` must be a list of ints"),
        ({"targets": ["ab", [EOS]]}, r"`targets\[0\]` must be a list of ints"),
        ({"targets": [[True], [EOS]]}, r"`targets\[0\]` must be a list of ints"),
        ({"targets": [[[5], [5, 6]], [EOS]]}, r"`targets\[0\]` must be a list of ints"),
        ({"targets": [[5, PAD], [EOS]]}, r"`targets\[0\]` must hold ids from 1"),
        ({"targets": [[-5, EOS], [EOS]]}, r"`targets\[0\]` must hold ids from 1"),
        ({"targets": [[2**31, EOS], [EOS]]}, r"`targets\[0\]` must hold ids from 1"),
    ],
)
def test_invalid_arguments_are_refused(change, message):
    arguments = {"sources": [[5, EOS], [EOS]], "targets": [[5, EOS], [EOS]], **change}
    with pytest.raises(ValueError, match=message):
        TranslationDataset(**arguments)


def make_model():
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")}
    model = keras.Model(inputs, Scores()(inputs))
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False
    )
    return model


# Most pairs have the same shape. Keras on TensorFlow derives a fixed length from the first two
# batches unless their shapes differ.
MIXED = [(8, 8)] * 40 + [(8, 16)] * 4 + [(16, 8)] * 4


@pytest.mark.parametrize(("seed", "shuffle"), [(0, True), (1, True), (2, True), (0, False)])
def test_fit_accepts_batches_of_different_shapes(seed, shuffle):
    *_, dataset = make(MIXED, batch_size=4, bucket=8, seed=seed, shuffle=shuffle)
    assert dataset.shapes == [(8, 8), (8, 16), (16, 8)]
    model = make_model()
    history = model.fit(dataset, validation_data=dataset, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert np.isfinite(model.evaluate(dataset, verbose=0))


def test_a_resumed_fit_has_the_epochs_of_an_uninterrupted_one():
    def epochs_of(dataset, **kwargs):
        epochs = []
        record = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda *_: epochs.append(dataset.epoch)
        )
        make_model().fit(dataset, shuffle=False, verbose=0, callbacks=[record], **kwargs)
        return epochs

    *_, whole = make(MIXED, batch_size=8)
    *_, first = make(MIXED, batch_size=8)
    *_, second = make(MIXED, batch_size=8)
    second.epoch = 2
    assert epochs_of(whole, epochs=4) == [1, 2, 3, 4]
    assert epochs_of(first, epochs=2) == [1, 2]
    assert epochs_of(second, initial_epoch=2, epochs=4) == [3, 4]


def test_pad_fills_rows_to_a_multiple_of_the_bucket():
    padded = pad([[5, 6, EOS], [], np.array([EOS])], bucket=4)
    assert padded.tolist() == [[5, 6, EOS, 0], [0, 0, 0, 0], [EOS, 0, 0, 0]]
    assert padded.dtype == "int32"
    assert pad([[5, EOS]]).shape == (1, 2)
    assert pad([[]]).shape == (1, 1)


def test_pad_cuts_long_rows_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "keras_bahdanau"):
        assert pad([[5, 6, 7, EOS], [5, EOS]], max_length=3).tolist() == [[5, 6, EOS], [5, EOS, 0]]
    assert "Cut 1 of 2 sequences to 3 ids." in caplog.text


@given(lengths=st.lists(st.integers(0, 50)), batch_size=st.integers(1, 7))
def test_length_sorted_batches_have_every_index_longest_first(lengths, batch_size):
    batches = length_sorted_batches(lengths, batch_size)
    order = np.concatenate([np.empty(0, int), *batches])
    assert sorted(order.tolist()) == list(range(len(lengths)))
    ordered = [lengths[index] for index in order]
    assert ordered == sorted(lengths, reverse=True)
    assert all(len(batch) == batch_size for batch in batches[:-1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pad([]), "at least one list"),
        (lambda: pad([[1]], bucket=0), "`bucket`"),
        (lambda: pad([[1]], max_length=0), "`max_length`"),
        (lambda: length_sorted_batches([1], 0), "`batch_size`"),
    ],
)
def test_arguments_of_the_batch_functions_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


ALIGNED = [[(0, 0), (2, 0), (1, 1), (1, 1)], [(0, 1), (1, 2)], []]
ALIGNED_LENGTHS = [(3, 3), (2, 3), (1, 1)]


def test_alignments_are_shares_of_the_linked_source_positions():
    *_, dataset = make(ALIGNED_LENGTHS, batch_size=4, bucket=4, shuffle=False, alignments=ALIGNED)
    inputs, _ = dataset[0]
    expected = np.zeros((4, 4, 4))
    expected[0, 0] = [0.5, 0, 0.5, 0]  # two links of the first target token
    expected[0, 1] = [0, 1, 0, 0]  # a repeated link counts once
    expected[1, 1, 0] = expected[1, 2, 1] = 1
    np.testing.assert_array_equal(inputs["alignment"], expected)
    assert inputs["alignment"].dtype == "float32"
    assert [row[0] for row in inputs["source"].tolist()] == [10, 11, EOS, PAD]
    assert "alignment" not in make(ALIGNED_LENGTHS)[-1][0][0]


@given(lengths=LENGTHS, data=st.data(), max_length=st.none() | st.integers(2, 12))
def test_alignments_follow_their_tokens(lengths, data, max_length):
    # All ids of a pair differ, so a pair of ids identifies a link.
    sources = [[100 + j for j in range(tx)] for tx, _ in lengths]
    targets = [[200 + i for i in range(ty)] for _, ty in lengths]
    alignments = [
        data.draw(st.lists(st.tuples(st.integers(0, tx - 1), st.integers(0, ty - 1)), max_size=6))
        for tx, ty in lengths
    ]
    dataset = TranslationDataset(
        sources, targets, batch_size=3, bucket=2, max_length=max_length, alignments=alignments
    )
    actual = []
    for inputs, labels in dataset:
        assert inputs["alignment"].shape == (*labels.shape, inputs["source"].shape[1])
        sums = inputs["alignment"].sum(axis=-1)
        np.testing.assert_allclose(sums, inputs["alignment"].any(axis=-1), rtol=1e-6)
        for source, label, rows in zip(inputs["source"], labels, inputs["alignment"], strict=True):
            if label.any():
                links = {(int(source[j]), int(label[i])) for i, j in np.argwhere(rows)}
                ids = (tuple(source[source != PAD]), tuple(label[label != PAD]))
                actual.append((*map(list, ids), sorted(links)))

    def cut(ids):
        if max_length is None or len(ids) <= max_length:
            return ids
        return [*ids[: max_length - 1], ids[-1]]

    expected = []
    for source, target, links in zip(sources, targets, alignments, strict=True):
        ids = {(source[s], target[t]) for s, t in links}
        source, target = cut(source), cut(target)
        ids = sorted((s, t) for s, t in ids if s in source and t in target)
        expected.append((source, target, ids))
    assert sorted(actual) == sorted(expected)


@pytest.mark.parametrize(
    ("alignments", "message"),
    [
        ([[]], "one list for each pair.*Received: 1 for 2 pairs"),
        ([[], [(0, 3)]], r"`alignments\[1\]` must hold .* below \(2, 3\).*\(0, 3\)"),
        ([[(2, 0)], [(2, 0)]], r"`alignments\[1\]` must hold"),
        ([[(-1, 0)], []], r"`alignments\[0\]` must hold"),
        ([[(0, 1, 2)], []], r"`alignments\[0\]` must be a list of pairs of ints"),
        ([[(0, 1), (2,)], []], r"`alignments\[0\]` must be a list of pairs of ints"),
        ([["0-1"], []], r"`alignments\[0\]` must be a list of pairs of ints.*0-1"),
        ([[(0.0, 1.0)], []], r"`alignments\[0\]` must be a list of pairs of ints"),
        ([3, []], r"`alignments\[0\]` must be a list of pairs of ints"),
    ],
)
def test_invalid_alignments_are_refused(alignments, message):
    with pytest.raises(ValueError, match=message):
        make([(3, 3), (2, 3)], alignments=alignments)


@pytest.mark.parametrize("name", ["corpus.align", "corpus.align.gz"])
def test_read_alignments_parses_plain_and_gzipped_files(tmp_path, name):
    write = gzip.open if name.endswith(".gz") else open
    with write(tmp_path / name, "wt", encoding="utf-8") as file:
        file.write("0-0 1-2  10-3\n\n 2-1\r\n")
    assert read_alignments(tmp_path / name) == [[(0, 0), (1, 2), (10, 3)], [], [(2, 1)]]


@pytest.mark.parametrize("link", ["1", "1-", "-1-2", "1-2-3", "1:2", "0-0,1-1", "a-b", "٣-1"])
def test_an_invalid_link_is_reported_with_file_and_line(tmp_path, link):
    path = tmp_path / "corpus.align"
    path.write_text(f"0-0\n1-1 {link} 2-2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"corpus\.align, line 2: expected .* '{link}'"):
        read_alignments(path)
