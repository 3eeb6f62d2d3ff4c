import keras
import numpy as np
import pytest

from keras_bahdanau import BeamSearch, GreedySearch, RNNSearch, Sampling
from keras_bahdanau_runtime.ids import BOS, EOS, PAD

SOURCE = [[5, 6, 7, 3], [8, 3], [6, 6, 5, 8, 7, 3]]
LENGTH = 6
SEARCHES = [
    GreedySearch(),
    BeamSearch(3, 0.6, coverage_penalty=0.2),
    BeamSearch(4, 1.0, n_best=2, groups=2, diversity=0.5, no_repeat_ngram=2),
    Sampling(n=3, top_p=0.9, seed=2),
]
each_search = pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "groups", "draw"])


def small():
    """A small model with weights large enough that hypotheses differ."""
    model = RNNSearch(9, 9, units=4, embedding_dim=3, attention_units=3, maxout_units=2)
    model.build()
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if np.issubdtype(weight.dtype, np.floating):
            weight.assign(rng.normal(size=weight.shape))
    return model


@pytest.fixture(scope="module")
def model():
    return small()


def padded(rows, width=0):
    width = max(width, *map(len, rows))
    return np.array([[*row, *[PAD] * (width - len(row))] for row in rows], "int32")


def existing(found):
    """Indices `(b, k)` of the hypotheses that exist."""
    return np.argwhere(found.scores > -np.inf)


def same(one, other):
    """The same outputs, whatever the room they lie in."""
    np.testing.assert_array_equal(one.lengths, other.lengths)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-4)
    for *place, n in [(b, k, one.lengths[b, k]) for b, k in existing(one)]:
        place = tuple(place)
        width = min(one.alignments.shape[-1], other.alignments.shape[-1])
        np.testing.assert_array_equal(one.tokens[place][:n], other.tokens[place][:n])
        for name in ("log_probs", "alignments"):
            mine, yours = getattr(one, name)[place][:n], getattr(other, name)[place][:n]
            if name == "alignments":
                assert not mine[:, width:].any() and not yours[:, width:].any()
                mine, yours = mine[:, :width], yours[:, :width]
            np.testing.assert_allclose(mine, yours, rtol=1e-4, atol=1e-5)


def rows_of(found, rows):
    return type(found)(*(part[rows] for part in found))


@each_search
def test_scores_are_those_of_teacher_forcing_and_of_score(model, search):
    found = model.generate(SOURCE, search, max_length=LENGTH)
    places = existing(found)
    sources = [SOURCE[b] for b, _ in places]
    outputs = [found.tokens[b, k, : found.lengths[b, k]] for b, k in places]
    again = model.score(sources, [tokens.tolist() for tokens in outputs])
    target = padded([[BOS, *tokens[:-1]] for tokens in outputs])
    logits = model({"source": padded(sources), "target": target}, training=False)
    logits = keras.ops.convert_to_numpy(logits).astype("float64")
    log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    for i, ((b, k), tokens) in enumerate(zip(places, outputs, strict=True)):
        n = len(tokens)
        assert again.lengths[i] == n
        np.testing.assert_allclose(again.totals[i], found.totals[b, k], atol=1e-4)
        np.testing.assert_allclose(again.log_probs[i, :n], found.log_probs[b, k, :n], atol=1e-4)
        width = len(SOURCE[b])
        np.testing.assert_allclose(
            again.alignments[i, :n, :width], found.alignments[b, k, :n, :width], atol=1e-4
        )
        expected = log_probs[i, np.arange(n), tokens]
        np.testing.assert_allclose(found.log_probs[b, k, :n], expected, atol=1e-4)
        np.testing.assert_allclose(found.totals[b, k], expected.sum(), atol=1e-4)


@each_search
def test_neither_batch_nor_order_nor_padding_matters(model, search):
    limits = np.array([4, 6, 5])
    found = model.generate(SOURCE, search, max_length=limits)
    assert (found.lengths <= limits[:, None]).all()
    same(found, model.generate(padded(SOURCE, 13), search, max_length=limits))
    if not isinstance(search, Sampling):  # whose numbers belong to a place in the batch
        order = [2, 0, 1]
        shuffled = model.generate([SOURCE[b] for b in order], search, max_length=limits[order])
        same(rows_of(found, order), shuffled)
        for b in range(2):
            alone = model.generate([SOURCE[b]], search, max_length=int(limits[b]))
            same(alone, rows_of(found, [b]))


@pytest.mark.parametrize("search", [GreedySearch, BeamSearch, Sampling])
def test_no_output_holds_padding_or_a_start_unless_asked_for(model, search):
    """Although the model, whose weights are random, would write them."""
    for options in ({}, {"min_length": 5}):
        found = model.generate(SOURCE, search(**options), max_length=LENGTH)
        for b, k in existing(found):
            tokens = found.tokens[b, k, : found.lengths[b, k]]
            assert not {PAD, BOS} & set(tokens.tolist())
            model.score([SOURCE[b]], [tokens.tolist()])  # which reads any output of a search
    allowed = model.generate(SOURCE * 30, Sampling(n=2, forbidden=()), max_length=LENGTH)
    live = np.arange(LENGTH) < allowed.lengths[..., None]
    assert (allowed.tokens[live] == PAD).any()


@pytest.mark.parametrize("search", [GreedySearch, BeamSearch, Sampling])
def test_the_ratio_is_a_limit_by_the_sources_lengths(model, search):
    options = {"seed": 1} if search is Sampling else {}
    found = model.generate(SOURCE, search(max_length_ratio=0.7, **options), max_length=LENGTH)
    lengths = np.array([len(ids) for ids in SOURCE])
    limits = np.maximum((0.7 * lengths).astype(int), 1)
    assert (found.lengths <= limits[:, None]).all() and (found.lengths == limits[:, None]).any()
    if search is not Sampling:  # whose numbers are those of the longest limit
        same(found, model.generate(SOURCE, search(**options), max_length=limits))


def test_one_padded_batch_is_scored_like_its_sentences(model):
    targets = [[4, 5, 3], [7], [8, 8, 8, 8]]  # one ends, two do not
    together = model.score(SOURCE, targets)
    assert together.lengths.tolist() == [3, 1, 4]
    for b, target in enumerate(targets):
        alone = model.score([SOURCE[b]], [target])
        np.testing.assert_allclose(together.totals[b], alone.totals[0], rtol=1e-4)
        assert not together.log_probs[b, len(target) :].any()
        assert not together.alignments[b, len(target) :].any()
    np.testing.assert_allclose(together.log_probs.sum(axis=1), together.totals, rtol=1e-5)


@each_search
def test_outputs_start_with_their_prefix(model, search):
    prefix = [[4, 7], [5, EOS], [6, 8, 7]]
    found = model.generate(SOURCE, search, max_length=LENGTH, prefix=prefix)
    for b, k in existing(found):
        assert found.tokens[b, k, : len(prefix[b])].tolist() == prefix[b]
    assert (found.scores[:, 0] > -np.inf).all() and found.lengths[1, 0] == 2
    same(found, model.generate(SOURCE, search, max_length=LENGTH, prefix=padded(prefix, 11)))


def test_a_prefix_may_be_empty_for_some(model):
    search = SEARCHES[1]
    found = model.generate(SOURCE, search, LENGTH, prefix=padded([[4], [], [4, 5, 6, 7, 8, 4]]))
    same(rows_of(found, [1]), model.generate(SOURCE[1:2], search, LENGTH))
    assert found.tokens[2, 0].tolist() == [4, 5, 6, 7, 8, 4] and found.lengths[2, 0] == LENGTH


@each_search
def test_limits_as_a_function_are_those_as_an_array(model, search):
    def limit(lengths):
        assert lengths.tolist() == [4, 2, 6]
        return lengths + 1

    found = model.generate(SOURCE, search, max_length=limit)
    same(found, model.generate(SOURCE, search, max_length=np.array([5, 3, 7])))
    assert (found.lengths <= [[5], [3], [7]]).all()


def test_a_seed_repeats_and_none_does_not(model):
    seeded, unseeded = Sampling(n=4, seed=1), Sampling(n=4)
    first, second = (model.generate(SOURCE, seeded, LENGTH) for _ in range(2))
    np.testing.assert_array_equal(first.tokens, second.tokens)
    first, second = (model.generate(SOURCE, unseeded, 30).totals for _ in range(2))
    assert (first != second).any()


def test_all_seeds_share_one_program(monkeypatch):
    """The numbers are its input: to compile anew for each would take seconds and memory."""
    model, begun = small(), []
    start = model.start

    def counted(source):
        begun.append(source)
        return start(source)

    monkeypatch.setattr(model, "start", counted)
    searches = [Sampling(n=4, seed=seed) for seed in (1, 2, None)]
    first, second, _ = (model.generate(SOURCE, search, LENGTH) for search in searches)
    assert len(begun) == (3 if keras.config.backend() == "torch" else 1)  # which compiles nothing
    assert (first.totals != second.totals).any()
    again = model.generate(SOURCE, searches[1], LENGTH)
    np.testing.assert_array_equal(second.tokens, again.tokens)


BAD_ARGUMENTS = {
    "max_length 0": ({"max_length": 0}, "`max_length` must be a positive integer"),
    "a limit of 0": ({"max_length": [3, 0, 3]}, "`max_length` must be a positive integer"),
    "limits of two": ({"max_length": [3, 3]}, "`max_length` must be a positive integer, one for"),
    "a function of 0": ({"max_length": lambda n: n - 2}, "`max_length` must be a positive"),
    "a bool": ({"max_length": True}, "`max_length` must be a positive integer"),
    "prefix too long": ({"prefix": [[4], [4] * 7, [4]]}, "no longer than outputs may be, 6.*7 ids"),
    "prefix over its limit": (
        {"max_length": [6, 1, 6], "prefix": [[4], [4, 5], [4]]},
        "no longer than outputs may be, 1.*2 ids in row 1",
    ),
    "prefix over the ratio": (
        {"search": GreedySearch(max_length_ratio=0.5), "prefix": [[4], [4, 5], [4]]},
        "no longer than outputs may be, 1.*2 ids in row 1",
    ),
    "prefix outside": ({"prefix": [[4], [9], [4]]}, r"`prefix` must hold ids in \[0, 9\).*9"),
    "prefix below": ({"prefix": [[4], [-1], [4]]}, r"`prefix` must hold ids in \[0, 9\).*-1"),
    "prefix of two": ({"prefix": [[4], [5]]}, "`prefix` must hold one prefix for each of 3"),
    "prefix with a gap": ({"prefix": [[4, 0, 4], [4], [4]]}, "`prefix` must be padded"),
    "prefix of floats": ({"prefix": [[4.0], [4.0], [4.0]]}, "`prefix` must hold integers"),
    "prefix past its end": ({"prefix": [[4], [4, 3, 4], [4]]}, "nothing after the end.*row 1"),
    "a name": ({"search": "beam"}, "`search` must be a search, such as BeamSearch.*'beam'"),
    "a class": ({"search": BeamSearch}, "`search` must be a search, such as BeamSearch.*<class"),
    "forbidden outside": ({"search": GreedySearch(forbidden=(9,))}, r"`search` must forbid ids in"),
}


@pytest.mark.parametrize("arguments, message", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_input_is_refused_before_any_work(model, monkeypatch, arguments, message):
    def work(*args, **kwargs):
        raise AssertionError("The search was begun.")

    monkeypatch.setattr(model, "_compiled_search", work)
    with pytest.raises(ValueError, match=f"Argument {message}|{message}"):
        model.generate(SOURCE, **{"max_length": LENGTH, **arguments})


@pytest.mark.parametrize(
    "target, message",
    [
        ([[4], [], [4]], "`target` must hold no output of only padding. Received: row 1"),
        ([[4], [9], [4]], r"`target` must hold ids in \[0, 9\)"),
        (
            [[4], [4, 3, 5, 3], [4]],
            "`target` must hold nothing after the end .* row 1",
        ),
        ([[4], [4]], "`target` must hold one output for each of 3 sources. Received: 2"),
    ],
)
def test_refuses_a_target_it_cannot_score(model, target, message):
    with pytest.raises(ValueError, match=message):
        model.score(SOURCE, target)


@pytest.fixture
def quantized():
    """A model that has searched before its numbers became int8."""
    model = small()
    model.score(padded(SOURCE), padded([[5, 3]] * 3))
    with pytest.warns(UserWarning, match="does not have a `quantize` method"):  # of its dropouts
        model.quantize("int8")
    return model


def test_a_quantized_model_scores_by_its_new_weights(quantized):
    source, targets = padded(SOURCE), padded([[5, 6, 3], [7, 3], [3]])
    inputs = {
        "source": source,
        "target": np.concatenate([np.full((3, 1), BOS), targets], 1)[:, :-1],
    }
    logits = keras.ops.convert_to_numpy(quantized(inputs)).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
    expected = np.where(targets == PAD, 0, picked).sum(1)
    np.testing.assert_allclose(quantized.score(source, targets).totals, expected, atol=1e-4)


def test_what_reads_the_output_weights_refuses_quantized_ones(quantized):
    with pytest.raises(ValueError, match=r"`shortlist` of a search, .* Received: weights of int8"):
        quantized.output_weights()
