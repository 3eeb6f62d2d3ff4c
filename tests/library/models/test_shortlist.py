"""Shortlists: their candidates, and searches restricted to them."""

import zipfile

import numpy as np
import pytest
from keras import ops
from layer_checks import numpy

from keras_bahdanau import BeamSearch, Ensemble, GreedySearch, RNNSearch
from keras_bahdanau.layers import PointerGenerator
from keras_bahdanau.models import Shortlist
from keras_bahdanau_runtime.ids import EOS, PAD

V, S = 40, 30
SOURCE = np.array([[5, 6, 7, 3], [8, 9, 3, 0]], "int32")
SIZES = dict(units=8, embedding_dim=6, attention_units=7, maxout_units=6, initializer=None)


def make(target_size, tie, seed=0, copy=False):
    """Return a model with random weights, large enough that outputs differ clearly."""
    model = RNNSearch(S, target_size, **SIZES, tie_embeddings=tie, copy=copy)
    model.build()
    for weight in model.weights:
        weight.assign(np.random.default_rng(seed).normal(size=weight.shape))
    return model


@pytest.fixture(scope="module")
def shortlist():
    table, shares = np.zeros((S, 3), "int32"), np.zeros((S, 3))
    table[5], table[6, 0], table[8, :2], table[20] = [30, 31, 32], 20, [33, 30], [35, 36, 37]
    shares[5], shares[6, 0], shares[8, :2] = [0.2, 0.5, 0.3], 1, [0.6, 0.4]
    shares[20], shares[9] = [0.55, 0.25, 0.2], 1  # shares of padding have no effect
    return Shortlist(table, shares, np.arange(V)[::-1], size=14)


def resized(shortlist, size):
    return Shortlist(shortlist.table, shortlist.shares, shortlist.counts, size)


def candidates(shortlist, source, *args, **kwargs):
    ids = shortlist.candidates(np.array(source, "int32"), *args, **kwargs)
    return ops.convert_to_numpy(ids).tolist()


def test_candidates_are_the_special_the_expected_and_the_most_frequent_ids(shortlist):
    # Source ids 5, 6 and 8 make 20 and 30 to 33 likely. The most frequent ids fill the rest.
    expected = [0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 30, 31, 32, 33]
    assert candidates(shortlist, SOURCE) == expected
    # Only five of 20 (1), 30 (0.2 + 0.4), 33 (0.6), 35 (0.55), 31 (0.5), 32, 36 and 37 fit.
    source, small = [[5, 6, 8, 20]], resized(shortlist, 9)
    assert candidates(small, source) == [0, 1, 2, 3, 20, 30, 31, 33, 35]
    # Source id 5 occurs twice, so 32 is expected 0.6 times.
    assert candidates(small, [[5, 6], [8, 5], [20, 3]]) == [0, 1, 2, 3, 20, 30, 31, 32, 33]
    prefix = np.array([[39, 0]], "int32")
    assert candidates(small, source, prefix=prefix) == [0, 1, 2, 3, 20, 30, 33, 35, 39]
    assert candidates(small, source, excluded={30}) == [0, 1, 2, 3, 20, 31, 32, 33, 35]
    prefix = np.array([[39, 38, 37], [36, 30, 39]], "int32")  # leaves no room for others
    assert candidates(small, source, prefix, {30}) == [0, 1, 2, 3, 30, 36, 37, 38, 39]


def test_padding_of_the_source_makes_no_target_id_likely():
    table, shares = np.zeros((S, 1), "int32"), np.zeros((S, 1))
    table[[0, 5], 0], shares[[0, 5], 0] = [38, 30], 1  # source id 0 is padding
    shortlist = Shortlist(table, shares, np.arange(V)[::-1], size=8)
    assert candidates(shortlist, [[5, 3, 0, 0]]) == [0, 1, 2, 3, 4, 5, 6, 30]


@pytest.mark.parametrize("tie", [True, False])
def test_the_logit_of_padding_is_the_mean_for_all_ids_outside_the_shortlist(shortlist, tie):
    model, chosen = make(V, tie), candidates(shortlist, SOURCE)
    memory, state, _ = model.start(ops.convert_to_tensor(SOURCE))
    tokens = ops.convert_to_tensor([2, 2], dtype="int32")
    logits, restricted = (
        ops.convert_to_numpy(model.step(tokens, state, memory, ids)[0])
        for ids in (None, ops.convert_to_tensor(chosen))
    )
    expected = logits[:, chosen]
    expected[:, 0] = np.log(V - len(chosen)) + logits.mean(axis=1)
    np.testing.assert_allclose(restricted, expected, atol=1e-5)


def test_a_search_equals_one_of_a_model_with_only_the_candidates(shortlist):
    model, chosen = make(V, False), np.array(candidates(shortlist, SOURCE))
    small = make(len(chosen), False)
    for small_weight, weight in zip(small.weights, model.weights, strict=True):
        value = ops.convert_to_numpy(weight)
        for axis, size in enumerate(value.shape):
            if size == V:
                mean = value.mean(axis=axis)
                value = np.take(value, chosen, axis=axis)
                if weight is model.output_layer.kernel:
                    value[:, 0] = mean
                elif weight is model.output_layer.bias:
                    value[0] = mean + np.log(V - len(chosen))
        small_weight.assign(value)
    # The shortlist forbids padding even if the search does not.
    result = model.generate(SOURCE, BeamSearch(3, forbidden=(2,)), 6, shortlist=shortlist)
    expected = small.generate(SOURCE, BeamSearch(3), max_length=6)
    np.testing.assert_array_equal(result.tokens, chosen[expected.tokens])
    np.testing.assert_allclose(result.scores, expected.scores, atol=1e-5)
    np.testing.assert_allclose(result.alignments, expected.alignments, atol=1e-5)


def test_prefixes_and_forbidden_ids_are_ids_of_the_whole_vocabulary(shortlist):
    model = make(V, True)
    prefix = [[39, 30], [38]]
    tokens = model.generate(SOURCE, GreedySearch(), 6, prefix=prefix, shortlist=shortlist).tokens
    assert tokens[0, 0, :2].tolist() == [39, 30] and tokens[1, 0, 0] == 38
    tokens = model.generate(SOURCE, GreedySearch(), 6, shortlist=shortlist).tokens
    forbidden = int(tokens[0, 0, 0])
    search = GreedySearch(forbidden=(0, 2, forbidden))
    assert forbidden not in model.generate(SOURCE, search, 6, shortlist=shortlist).tokens


def test_completions_are_ids_of_the_whole_vocabulary(shortlist):
    model, source = make(V, True), SOURCE[:1]
    ids = candidates(shortlist, source)
    own, *others = [int(token) for token in ids if token > EOS]
    outside = int(np.setdiff1d(np.arange(4, V), ids)[0])
    completions = [[[0, token] for token in (*others, outside)]]
    arguments = {"prefix": [[own, own]], "completions": completions, "shortlist": shortlist}
    result = model.generate(source, BeamSearch(4), 6, **arguments)
    first = set(result.tokens[0, :, 0].tolist())
    assert first <= {own, *others} and first & set(others)


def test_suppressed_ids_are_ids_of_the_whole_vocabulary(shortlist):
    model = make(V, True)
    tokens = model.generate(SOURCE, BeamSearch(3), 6, shortlist=shortlist).tokens
    suppressed = np.setdiff1d(tokens[0], [PAD, EOS])[:2]
    outside = np.setdiff1d(np.arange(4, V), candidates(shortlist, SOURCE))[:1]
    result = model.generate(
        SOURCE, BeamSearch(3), 6, shortlist=shortlist, suppressed=[suppressed, outside]
    )
    assert not np.isin(result.tokens[0], suppressed).any()
    np.testing.assert_array_equal(result.tokens[1], tokens[1])


def test_prefixes_without_room_in_the_shortlist_are_refused(shortlist):
    model, source = make(V, True), SOURCE[:1]
    result = model.generate(source, GreedySearch(), 12, [list(range(30, 40))], shortlist=shortlist)
    assert result.tokens[0, 0, :10].tolist() == list(range(30, 40))
    with pytest.raises(
        ValueError, match=r"`prefix` must hold at most 10 distinct ids.*Received: 11"
    ):
        model.generate(source, GreedySearch(), 12, [list(range(29, 40))], shortlist=shortlist)
    search = GreedySearch(forbidden=(0, 2, 38))
    with pytest.raises(ValueError, match=r"`prefix` must not hold ids that the search .*: 38"):
        model.generate(source, search, 6, prefix=[[39, 38]], shortlist=shortlist)
    with pytest.raises(ValueError, match=f"a size of at most {V - 1}. Received: {V}"):
        model.generate(source, search, 6, shortlist=resized(shortlist, V))


def test_copied_ids_are_candidates_and_get_the_attention_of_the_source(shortlist):
    # Source ids 5 to 7 copy ids that are not in the shortlist, 6 and 7 the same one.
    copy = PointerGenerator([0] * 5 + [38, 37, 37] + [0] * (S - 8))
    model, plain = make(V, False, copy=copy), make(V, False)
    others = [weight for weight in model.weights if "gate" not in weight.path]
    for weight, other in zip(plain.weights, others, strict=True):
        weight.assign(other)
    model.copy.gate_layer.kernel.assign(np.zeros((SIZES["maxout_units"], 1)))  # g = 1/2
    model.copy.gate_layer.bias.assign([0.0])
    source = ops.convert_to_tensor(SOURCE)
    chosen = candidates(shortlist, SOURCE, copied=model.copied_ids(source))
    assert {37, 38} < set(chosen) and not {37, 38} & set(candidates(shortlist, SOURCE))
    tokens, ids = (ops.convert_to_tensor(np.array(each, "int32")) for each in ([2, 2], chosen))
    memory, state, _ = plain.start(source)
    logits, _, weights = map(numpy, plain.step(tokens, state, memory, ids))
    memory, state, _ = model.start(source)
    result = numpy(model.step(tokens, state, memory, ids)[0])
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    mass = np.zeros_like(softmax)
    mass[0, chosen.index(38)], mass[0, chosen.index(37)] = weights[0, 0], weights[0, 1:3].sum()
    expected = softmax + mass  # the second source has nothing to copy
    np.testing.assert_allclose(
        np.exp(result) / np.exp(result).sum(axis=1, keepdims=True),
        expected / expected.sum(axis=1, keepdims=True),
        atol=1e-6,
    )
    generation = model.generate(SOURCE, BeamSearch(3), 6, shortlist=shortlist)
    assert set(np.unique(generation.tokens)) <= set(chosen)


def test_a_shortlist_of_all_ids_changes_nothing():
    copy = PointerGenerator([0] * 4 + [4 + token for token in range(S - 4)])
    model = Ensemble([make(V, True, 0), make(V, True, 1, copy)])
    complete = Shortlist(np.full((S, 1), 5), np.ones((S, 1)), np.ones(V), V)
    result, expected = (
        model.generate(SOURCE, BeamSearch(3), 6, shortlist=each) for each in (complete, None)
    )
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    np.testing.assert_allclose(result.scores, expected.scores, atol=1e-5)


def assert_same_tables(shortlist, expected):
    for name in ("table", "shares", "counts"):
        np.testing.assert_array_equal(getattr(shortlist, name), getattr(expected, name))


def test_a_link_equals_an_alignment_weight_of_one():
    weights = np.array([[1.0, 0, 0], [1, 1, 0], [0, 0, 0]])
    shortlists = [
        Shortlist.from_links([([5, 6, 3], [20, 21, 3], links)], S, V, size=12)
        for links in ([(0, 0), (0, 1), (1, 1)], weights)
    ]
    assert_same_tables(*shortlists)
    with pytest.raises(ValueError, match=r"sentences of 2 and 1 ids\. Received: 1-1"):
        Shortlist.from_links([([5, 3], [20], [(1, 1)])], S, V, size=12)
    for wrong in ([[0.2, 0.8]], [(0, 0, 1)], [0, 0]):
        with pytest.raises(ValueError, match="list of links with two ints each"):
            Shortlist.from_links([([5, 3], [20], wrong)], S, V, size=12)
    with pytest.raises(ValueError, match="`pairs` must be an array with rows of one length"):
        Shortlist.from_links([([5, 3], [20], [(0, 0), (0, 0, 1)])], S, V, size=12)
    pairs = [([5, 3], [20, 3], []), ([5], [20], [(0, 0)])]  # the first pair has no links
    assert Shortlist.from_links(pairs, S, V, size=12).table[5, 0] == 20


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
def test_pairs_with_unknown_ids_or_weights_of_another_shape_are_refused(
    source, target, weights, message
):
    with pytest.raises(ValueError, match=f"`pairs` must h.*{message}"):
        Shortlist.from_links([(source, target, np.array(weights))], S, V, size=12)


def test_a_table_holds_the_strongest_links_and_their_shares():
    pairs = [
        ([5, 6, 3], [20, 21, 3], np.array([[0.9, 0.05, 0.0], [0.2, 0.8, 0.0], [0, 0, 1.0]])),
        ([5, 3], [22, 3], np.array([[1.0, 0.0], [0.0, 1.0]])),
    ]
    shortlist = Shortlist.from_links(pairs, S, V, size=12, candidates=2)
    # Source id 5 is linked to 22 (1.0), 20 (0.9) and 21 (0.2), of which two fit.
    # Source id 6 is linked to 21 (0.8); 0.05 is too weak. EOS is never a candidate.
    assert shortlist.table[5].tolist() == [22, 20] and shortlist.table[6].tolist() == [21, 0]
    assert not shortlist.table[3].any() and shortlist.table.shape == (S, 2)
    np.testing.assert_allclose(shortlist.shares[5], [1.0 / 2.1, 0.9 / 2.1], rtol=1e-6)
    assert shortlist.shares[6].tolist() == [1, 0]
    assert shortlist.counts[[3, 20, 21, 22, 23]].tolist() == [2, 1, 1, 1, 0]


def test_a_learned_shortlist_holds_the_ids_the_model_attends_to():
    model = make(V, True)
    sources, targets = [[5, 6, 7, 3], [8, 3]], [[20, 21, 3], [22, 23, 24, 3]]
    done = []
    batched = Shortlist.learned(model, sources, targets, 30, candidates=3, progress=done.append)
    weights = model.score([[8, 3]], [[22, 23, 24, 3]]).alignments[0]
    links = np.where(weights >= 0.1, weights, 0)[:3, 0]
    expected = [22 + i for i in np.argsort(-links, kind="stable") if links[i]]
    assert batched.table[8].tolist() == expected + [0] * (3 - len(expected)) and done == [2]
    done.clear()
    single = Shortlist.learned(model, sources, targets, 30, 3, progress=done.append, batch_tokens=7)
    assert single.table.tolist() == batched.table.tolist() and done == [1, 2]
    with pytest.raises(ValueError, match="`targets` must hold one for each of 2 sources"):
        Shortlist.learned(model, sources, targets[:1], 30)


def test_a_loaded_shortlist_has_the_same_tables(shortlist, tmp_path):
    shortlist.save(tmp_path / "few.npz")
    loaded = Shortlist.load(tmp_path / "few.npz")
    assert_same_tables(loaded, shortlist)
    assert loaded.size == shortlist.size
    np.save(tmp_path / "array.npy", np.zeros(3))
    whole, array = ((tmp_path / name).read_bytes() for name in ("few.npz", "array.npy"))
    for name, contents in (("half", whole[:200]), ("no", b"a"), ("array", array)):
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(ValueError, match=r"must be a file that `Shortlist\.save` wrote"):
            Shortlist.load(tmp_path / name)


def test_a_file_of_a_large_or_wrong_array_is_refused(shortlist, tmp_path, monkeypatch):
    arrays = {name: getattr(shortlist, name) for name in ("table", "shares", "counts")}
    path = tmp_path / "sizes.npz"
    np.savez(path, **arrays, size=[9, 9])
    refused = pytest.raises(ValueError, match=r"must be a file that `Shortlist\.save` wrote")
    with refused:
        Shortlist.load(path)
    with zipfile.ZipFile(path, "w") as archive, archive.open("table.npy", "w") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**55,)}
        np.lib.format.write_array_header_1_0(file, header)
    with refused:
        Shortlist.load(path)
    shortlist.save(path)
    monkeypatch.setattr("keras_bahdanau.models.shortlist._MAX_BYTES", 200)
    with pytest.raises(ValueError, match=r"member 'table\.npy' has more than 200 bytes"):
        Shortlist.load(path)


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
def test_tables_and_sizes_out_of_range_are_refused(table, shares, counts, size, message):
    with pytest.raises(ValueError, match=message):
        Shortlist(table, shares, counts, size)


def test_shortlists_that_do_not_fit_the_model_or_search_are_refused(shortlist):
    model = make(V, True)
    larger = Shortlist(shortlist.table, shortlist.shares, np.ones(V + 1), 9)
    for wrong, search, message in (
        ("few", None, "must be a Shortlist or None"),
        (Shortlist([[5]], [[1]], np.ones(V), 9), None, "must be of the model's 30 source ids"),
        (larger, None, "the model's 40 target ids"),
        (shortlist, BeamSearch(15), "as many ids as the search has hypotheses, 15"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate(SOURCE, search, 6, shortlist=wrong)
    with pytest.raises(ValueError, match="`pairs` must hold at least one"):
        Shortlist.from_links([], S, V, 9)


def test_each_call_uses_its_own_shortlist(shortlist):
    model = make(V, True)
    other = Shortlist(shortlist.table, shortlist.shares, shortlist.counts[::-1], shortlist.size)
    for each in (None, shortlist, other, None):
        allowed = range(V) if each is None else candidates(each, SOURCE)
        tokens = model.generate(SOURCE, BeamSearch(3), 6, shortlist=each).tokens
        expected = make(V, True).generate(SOURCE, BeamSearch(3), 6, shortlist=each).tokens
        assert set(tokens.ravel().tolist()) <= set(allowed)
        np.testing.assert_array_equal(tokens, expected)


def test_links_are_merged_across_chunks_of_ten_thousand_pairs():
    weights = np.array([[1.0, 0], [0, 0]])
    pairs = [([5, 3], [20, 3], weights)] * 5_000 + [([5, 3], [21, 3], weights)] * 7_500
    shortlist = Shortlist.from_links(pairs, S, V, size=12, candidates=2)
    assert shortlist.table[5].tolist() == [21, 20]
    np.testing.assert_allclose(shortlist.shares[5], [0.6, 0.4])
