"""Shortlists: what is among the candidates; a search among them is one of a smaller model."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bahdanau import BeamSearch, Ensemble, GreedySearch, RNNSearch, Shortlist

V, S = 40, 30
SOURCE = np.array([[5, 6, 7, 3], [8, 9, 3, 0]], "int32")
SIZES = dict(units=8, embedding_dim=6, attention_units=7, maxout_units=6, initializer=None)


def make(target_size, tie, seed=0):
    keras.utils.set_random_seed(seed)
    model = RNNSearch(S, target_size, **SIZES, tie_embeddings=tie)
    model.build()
    for weight in model.weights:  # far from equal, so that outputs differ
        weight.assign(np.random.default_rng(seed).normal(size=weight.shape))
    return model


@pytest.fixture(scope="module")
def shortlist():
    table, shares = np.zeros((S, 3), "int32"), np.zeros((S, 3))
    table[5], table[6, 0], table[8, :2], table[20] = [30, 31, 32], 20, [33, 30], [35, 36, 37]
    shares[5], shares[6, 0], shares[8, :2] = [0.2, 0.5, 0.3], 1, [0.6, 0.4]
    shares[20], shares[9] = [0.55, 0.25, 0.2], 1  # of padding
    return Shortlist(table, shares, np.arange(V)[::-1], size=14)


def ids(tensor):
    return ops.convert_to_numpy(tensor).tolist()


def test_candidates_by_hand(shortlist):
    # The special ids, those of 5, 6 and 8, and the most frequent others.
    expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 30, 31, 32, 33]
    assert ids(shortlist.candidates(SOURCE)) == expected
    # Too many: of 30, expected 0.2 + 0.4 times, and 20, 31, 33, 35, 32, 36, 37 the first five.
    every = np.array([[5, 6, 8, 20]], "int32")
    small = Shortlist(shortlist.table, shortlist.shares, shortlist.counts, size=9)
    assert ids(small.candidates(every)) == [0, 1, 2, 3, 20, 30, 31, 33, 35]
    # 32 comes twice, 0.6 times in all.
    twice = np.array([[5, 6], [8, 5], [20, 3]], "int32")
    assert ids(small.candidates(twice)) == [0, 1, 2, 3, 20, 30, 31, 32, 33]
    found = ids(small.candidates(every, prefix=np.array([[39, 0]], "int32")))
    assert found == [0, 1, 2, 3, 20, 30, 33, 35, 39]
    without = ids(small.candidates(every, without={30}))
    assert without == [0, 1, 2, 3, 20, 31, 32, 33, 35]
    prefix = np.array([[39, 38, 37], [36, 30, 39]], "int32")  # all that there is room for
    assert ids(small.candidates(every, prefix, {30})) == [0, 1, 2, 3, 30, 36, 37, 38, 39]


@pytest.mark.parametrize("tie", [True, False])
def test_padding_stands_for_the_mean_of_all_others(shortlist, tie):
    model = make(V, tie)
    chosen = np.array(ids(shortlist.candidates(SOURCE)))
    memory, state, _ = model.start(ops.convert_to_tensor(SOURCE))
    tokens = ops.convert_to_tensor([2, 2], dtype="int32")
    logits = [
        ops.convert_to_numpy(model.step(tokens, state, memory, some)[0])
        for some in (None, ops.convert_to_tensor(chosen))
    ]
    expected = logits[0][:, chosen]
    expected[:, 0] = np.log(V - len(chosen)) + logits[0].mean(axis=1)
    np.testing.assert_allclose(logits[1], expected, atol=1e-5)


def test_a_search_is_that_of_a_model_of_these_ids_alone(shortlist):
    model = make(V, False)
    chosen = np.array(ids(shortlist.candidates(SOURCE)))
    small = make(len(chosen), False)
    for few, all_ids in zip(small.weights, model.weights, strict=True):
        value = ops.convert_to_numpy(all_ids)
        for axis, size in enumerate(value.shape):
            if size == V:
                mean = value.mean(axis=axis)
                value = np.take(value, chosen, axis=axis)
                if all_ids is model.output_layer.kernel:
                    value[:, 0] = mean
                elif all_ids is model.output_layer.bias:
                    value[0] = mean + np.log(V - len(chosen))
        few.assign(value)
    search = BeamSearch(3)
    # That padding is never chosen is of the shortlist, whatever the search forbids.
    found = model.generate(SOURCE, BeamSearch(3, forbidden=(2,)), 6, shortlist=shortlist)
    expected = small.generate(SOURCE, search, max_length=6)
    np.testing.assert_array_equal(found.tokens, chosen[expected.tokens])
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    np.testing.assert_allclose(found.alignments, expected.alignments, atol=1e-5)


def test_prefixes_and_forbidden_ids_are_the_models_own(shortlist):
    model = make(V, True)
    prefix = [[39, 30], [38]]
    found = model.generate(SOURCE, GreedySearch(), 6, prefix=prefix, shortlist=shortlist)
    assert found.tokens[0, 0, :2].tolist() == [39, 30] and found.tokens[1, 0, 0] == 38
    free = model.generate(SOURCE, GreedySearch(), 6, shortlist=shortlist).tokens
    bad = int(free[0, 0, 0])
    search = GreedySearch(forbidden=(0, 2, bad))
    assert bad not in model.generate(SOURCE, search, 6, shortlist=shortlist).tokens


def test_what_there_is_no_room_for_is_refused(shortlist):
    model, source = make(V, True), SOURCE[:1]
    found = model.generate(source, GreedySearch(), 12, [list(range(30, 40))], shortlist=shortlist)
    assert found.tokens[0, 0, :10].tolist() == list(range(30, 40))
    with pytest.raises(ValueError, match=r"`prefix` must hold at most 10 ids .*Received: 11"):
        model.generate(source, GreedySearch(), 12, [list(range(29, 40))], shortlist=shortlist)
    search = GreedySearch(forbidden=(0, 2, 38))
    with pytest.raises(ValueError, match=r"`prefix` must hold nothing that the search .*: 38"):
        model.generate(source, search, 6, prefix=[[39, 38]], shortlist=shortlist)
    every = Shortlist(shortlist.table, shortlist.shares, shortlist.counts, V)
    with pytest.raises(ValueError, match=f"a size of at most {V - 1}. Received: {V}"):
        model.generate(source, search, 6, shortlist=every)


def test_with_all_ids_nothing_changes():
    model = Ensemble([make(V, True, 0), make(V, True, 1)])
    every = Shortlist(np.full((S, 1), 5), np.ones((S, 1)), np.ones(V), V)
    ours, plain = (
        model.generate(SOURCE, BeamSearch(3), 6, shortlist=each) for each in (every, None)
    )
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    np.testing.assert_allclose(ours.scores, plain.scores, atol=1e-5)


def test_links_are_weights_of_one():
    given = [(0, 0), (0, 1), (1, 1)]
    weights = np.array([[1.0, 0, 0], [1, 1, 0], [0, 0, 0]])
    found, expected = (
        Shortlist.from_links([([5, 6, 3], [20, 21, 3], links)], S, V, size=12)
        for links in (given, weights)
    )
    for name in ("table", "shares", "counts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    with pytest.raises(ValueError, match=r"sentences of 2 and 1 ids\. Received: 1-1"):
        Shortlist.from_links([([5, 3], [20], [(1, 1)])], S, V, size=12)
    for wrong in ([[0.2, 0.8]], [(0, 0, 1)], [0, 0]):
        with pytest.raises(ValueError, match="`pairs` must link two places by two ints"):
            Shortlist.from_links([([5, 3], [20], wrong)], S, V, size=12)
    with pytest.raises(ValueError, match="`pairs` must be an array, all of whose rows"):
        Shortlist.from_links([([5, 3], [20], [(0, 0), (0, 0, 1)])], S, V, size=12)
    nothing = Shortlist.from_links([([5, 3], [20, 3], []), ([5], [20], [(0, 0)])], S, V, size=12)
    assert nothing.table[5].tolist()[0] == 20


@pytest.mark.parametrize(
    "source, target, weights, message",
    [
        ([S, 3], [20], [[1.0, 0.0]], rf"ids in \[0, {S}\)"),
        ([5, 3], [V], [[1.0, 0.0]], rf"ids in \[0, {V}\)"),
        ([-1, 3], [20], [[1.0, 0.0]], rf"ids in \[0, {S}\)"),
        ([5.0, 3.0], [20], [[1.0, 0.0]], "ids in"),
        ([5, 3], [20], np.ones((2, 1)), r"weights of shape \(1, 2\) .*Received: \(2, 1\)"),
    ],
)
def test_links_of_other_sentences(source, target, weights, message):
    with pytest.raises(ValueError, match=f"`pairs` must h.*{message}"):
        Shortlist.from_links([(source, target, np.array(weights))], S, V, size=12)


def test_links_by_hand():
    pairs = [
        ([5, 6, 3], [20, 21, 3], np.array([[0.9, 0.05, 0.0], [0.2, 0.8, 0.0], [0, 0, 1.0]])),
        ([5, 3], [22, 3], np.array([[1.0, 0.0], [0.0, 1.0]])),
    ]
    found = Shortlist.from_links(pairs, S, V, size=12, candidates=2)
    # 5: 20 by 0.9, 22 by 1.0, 21 by 0.2; 6: 21 by 0.8, 20 by too little; EOS is never a candidate.
    assert found.table[5].tolist() == [22, 20] and found.table[6].tolist() == [21, 0]
    assert not found.table[3].any() and found.table.shape == (S, 2)
    np.testing.assert_allclose(found.shares[5], [1.0 / 2.1, 0.9 / 2.1], rtol=1e-6)
    assert found.shares[6].tolist() == [1, 0]
    assert found.counts[[3, 20, 21, 22, 23]].tolist() == [2, 1, 1, 1, 0]


def test_it_is_learned_from_what_the_model_attends_to():
    model = make(V, True)
    sources, targets = [[5, 6, 7, 3], [8, 3]], [[20, 21, 3], [22, 23, 24, 3]]
    done = []
    found = Shortlist.learned(model, sources, targets, 30, candidates=3, progress=done.append)
    weights = model.score([[8, 3]], [[22, 23, 24, 3]]).alignments[0]
    kept = np.where(weights >= 0.1, weights, 0)[:3, 0]
    expected = [22 + i for i in np.argsort(-kept, kind="stable") if kept[i]]
    assert found.table[8].tolist() == expected + [0] * (3 - len(expected)) and done == [2]
    done.clear()
    alone = Shortlist.learned(model, sources, targets, 30, 3, progress=done.append, batch_tokens=7)
    assert alone.table.tolist() == found.table.tolist() and done == [1, 2]
    with pytest.raises(ValueError, match="`targets` must hold one for each of 2 sources"):
        Shortlist.learned(model, sources, targets[:1], 30)


def test_save_and_load(shortlist, tmp_path):
    shortlist.save(tmp_path / "few.npz")
    again = Shortlist.load(tmp_path / "few.npz")
    for name in ("table", "shares", "counts"):
        np.testing.assert_array_equal(getattr(again, name), getattr(shortlist, name))
    assert again.size == shortlist.size
    np.save(tmp_path / "array.npy", np.zeros(3))
    whole, array = ((tmp_path / name).read_bytes() for name in ("few.npz", "array.npy"))
    for name, contents in (("half", whole[:200]), ("no", b"a"), ("array", array)):
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(ValueError, match=r"must be a file that `Shortlist\.save` wrote"):
            Shortlist.load(tmp_path / name)


@pytest.mark.parametrize(
    "table, shares, counts, size, message",
    [
        ([[5.0]], [[1]], range(V), 9, "`table` must be ints"),
        ([5], [1], range(V), 9, "`table` must be ints"),
        ([[V]], [[1]], range(V), 9, r"`table` must hold ids in \[0, 40\). Received: 40"),
        ([[0, 3]], [[1, 1]], range(V), 9, "`table` must hold candidates"),
        ([[0, 5]], [[1, 0]], range(V), 9, "`table` must hold candidates with a share"),
        ([[5]], [[1, 1]], range(V), 9, "`shares` must be numbers"),
        ([[5]], [[1.1]], range(V), 9, "`shares` must be numbers"),
        ([[5]], [[1]], [[1]], 9, "`counts` must be numbers"),
        ([[5]], [[1]], range(V), 7, "`size`"),
        ([[5]], [[1]], range(V), V + 1, "`size`"),
    ],
)
def test_errors(table, shares, counts, size, message):
    with pytest.raises(ValueError, match=message):
        Shortlist(table, shares, counts, size)


def test_shortlists_that_do_not_fit(shortlist):
    model = make(V, True)
    for wrong, search, message in (
        ("few", None, "must be a Shortlist or None"),
        (Shortlist([[5]], [[1]], np.ones(V), 9), None, "must be of the model's 30 source ids"),
        (
            Shortlist(shortlist.table, shortlist.shares, np.ones(V + 1), 9),
            None,
            "the model's 40 target ids",
        ),
        (shortlist, BeamSearch(15), "as many ids as the search keeps hypotheses, 15"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate(SOURCE, search, 6, shortlist=wrong)
    with pytest.raises(ValueError, match="`pairs` must hold at least one"):
        Shortlist.from_links([], S, V, 9)


def test_each_search_has_the_shortlist_that_it_was_given(shortlist):
    model = make(V, True)
    other = Shortlist(shortlist.table, shortlist.shares, shortlist.counts[::-1], shortlist.size)
    for few in (None, shortlist, other, None):
        among = (
            set(range(V))
            if few is None
            else set(ops.convert_to_numpy(few.candidates(SOURCE)).tolist())
        )
        found = model.generate(SOURCE, BeamSearch(3), 6, shortlist=few)
        alone = make(V, True).generate(SOURCE, BeamSearch(3), 6, shortlist=few)
        assert set(found.tokens.ravel().tolist()) <= among
        np.testing.assert_array_equal(found.tokens, alone.tokens)


def test_links_of_more_pairs_than_are_held_at_once_are_all_counted():
    first = ([5, 3], [20, 3], np.array([[1.0, 0], [0, 0]]))
    rest = ([5, 3], [21, 3], np.array([[1.0, 0], [0, 0]]))
    found = Shortlist.from_links([first] * 5_000 + [rest] * 7_500, S, V, size=12, candidates=2)
    assert found.table[5].tolist() == [21, 20]
    np.testing.assert_allclose(found.shares[5], [0.6, 0.4])
