import keras
import numpy as np
import pytest
from models import log_softmax

from keras_bahdanau import BeamSearch, GreedySearch, RNNSearch, Sampling
from keras_bahdanau.models.generation import apply_options
from keras_bahdanau_runtime import SearchOptions
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


def small(**options):
    """A small model with weights large enough that hypotheses differ."""
    model = RNNSearch(9, 9, units=4, embedding_dim=3, attention_units=3, maxout_units=2, **options)
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


def existing(result):
    """Indices `(b, k)` of the hypotheses that exist."""
    return np.argwhere(result.scores > -np.inf)


def assert_same_outputs(actual, expected):
    """Check that both results have the same outputs, with any padding of steps and sources."""
    np.testing.assert_array_equal(actual.lengths, expected.lengths)
    np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-4, atol=1e-4)
    width = min(actual.alignments.shape[-1], expected.alignments.shape[-1])
    for result in (actual, expected):
        for b, k in existing(result):
            assert not result.alignments[b, k, : result.lengths[b, k], width:].any()
    for b, k in existing(actual):
        at = (b, k, slice(actual.lengths[b, k]))
        np.testing.assert_array_equal(actual.tokens[at], expected.tokens[at])
        np.testing.assert_allclose(actual.log_probs[at], expected.log_probs[at], 1e-4, 1e-5)
        np.testing.assert_allclose(
            actual.alignments[at][:, :width], expected.alignments[at][:, :width], 1e-4, 1e-5
        )


def rows_of(result, rows):
    return type(result)(*(part[rows] for part in result))


@each_search
def test_generate_score_and_teacher_forcing_give_the_same_scores(model, search):
    result = model.generate(SOURCE, search, max_length=LENGTH)
    places = existing(result)
    sources = [SOURCE[b] for b, _ in places]
    outputs = [result.tokens[b, k, : result.lengths[b, k]] for b, k in places]
    again = model.score(sources, [tokens.tolist() for tokens in outputs])
    target = padded([[BOS, *tokens[:-1]] for tokens in outputs])
    log_probs = log_softmax(model({"source": padded(sources), "target": target}, training=False))
    for i, ((b, k), tokens) in enumerate(zip(places, outputs, strict=True)):
        n = len(tokens)
        assert again.lengths[i] == n
        np.testing.assert_allclose(again.totals[i], result.totals[b, k], atol=1e-4)
        np.testing.assert_allclose(again.log_probs[i, :n], result.log_probs[b, k, :n], atol=1e-4)
        width = len(SOURCE[b])
        np.testing.assert_allclose(
            again.alignments[i, :n, :width], result.alignments[b, k, :n, :width], atol=1e-4
        )
        expected = log_probs[i, np.arange(n), tokens]
        np.testing.assert_allclose(result.log_probs[b, k, :n], expected, atol=1e-4)
        np.testing.assert_allclose(result.totals[b, k], expected.sum(), atol=1e-4)


@each_search
def test_outputs_do_not_depend_on_batch_order_or_padding(model, search):
    limits = np.array([4, 6, 5])
    result = model.generate(SOURCE, search, max_length=limits)
    assert (result.lengths <= limits[:, None]).all()
    assert_same_outputs(result, model.generate(padded(SOURCE, 13), search, max_length=limits))
    if not isinstance(search, Sampling):  # its random numbers depend on the position in the batch
        order = [2, 0, 1]
        shuffled = model.generate([SOURCE[b] for b in order], search, max_length=limits[order])
        assert_same_outputs(rows_of(result, order), shuffled)
        for b in range(2):
            alone = model.generate([SOURCE[b]], search, max_length=int(limits[b]))
            assert_same_outputs(alone, rows_of(result, [b]))


@pytest.mark.parametrize("search", [GreedySearch, BeamSearch, Sampling])
def test_padding_and_bos_are_forbidden_by_default(model, search):
    # The model has random weights and would generate both.
    for options in ({}, {"min_length": 5}):
        result = model.generate(SOURCE, search(**options), max_length=LENGTH)
        for b, k in existing(result):
            tokens = result.tokens[b, k, : result.lengths[b, k]]
            assert not {PAD, BOS} & set(tokens.tolist())
            model.score([SOURCE[b]], [tokens.tolist()])  # accepts every output of a search
    allowed = model.generate(SOURCE * 30, Sampling(n=2, forbidden=()), max_length=LENGTH)
    live = np.arange(LENGTH) < allowed.lengths[..., None]
    assert (allowed.tokens[live] == PAD).any()


@pytest.mark.parametrize("search", [GreedySearch, BeamSearch, Sampling])
def test_the_length_ratio_limits_outputs_by_the_source_length(model, search):
    options = {"seed": 1} if search is Sampling else {}
    result = model.generate(SOURCE, search(max_length_ratio=0.7, **options), max_length=LENGTH)
    lengths = np.array([len(ids) for ids in SOURCE])
    limits = np.maximum((0.7 * lengths).astype(int), 1)
    assert (result.lengths <= limits[:, None]).all() and (result.lengths == limits[:, None]).any()
    if search is not Sampling:  # its random numbers depend on the longest limit
        assert_same_outputs(result, model.generate(SOURCE, search(**options), max_length=limits))


def test_the_length_ratio_counts_an_end_token_that_the_encoder_does_not_read():
    search = GreedySearch(max_length_ratio=1.5, forbidden=(PAD, BOS, EOS))
    prefix = [[4, 5, 6, 7, 8, 4]]  # as long as the limit, 1.5 times 4 tokens
    result = small(read_source_end=False).generate([[5, 6, 7, EOS]], search, 20, prefix=prefix)
    assert result.tokens[0].tolist() == prefix


def test_a_padded_batch_is_scored_like_single_sentences(model):
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
    result = model.generate(SOURCE, search, max_length=LENGTH, prefix=prefix)
    for b, k in existing(result):
        assert result.tokens[b, k, : len(prefix[b])].tolist() == prefix[b]
    assert (result.scores[:, 0] > -np.inf).all() and result.lengths[1, 0] == 2
    again = model.generate(SOURCE, search, max_length=LENGTH, prefix=padded(prefix, 11))
    assert_same_outputs(result, again)


def test_some_rows_may_have_an_empty_prefix(model):
    search = SEARCHES[1]
    result = model.generate(SOURCE, search, LENGTH, prefix=padded([[4], [], [4, 5, 6, 7, 8, 4]]))
    assert_same_outputs(rows_of(result, [1]), model.generate(SOURCE[1:2], search, LENGTH))
    assert result.tokens[2, 0].tolist() == [4, 5, 6, 7, 8, 4] and result.lengths[2, 0] == LENGTH


def test_outputs_contain_their_required_phrases(model):
    phrases = [[[7, 4], [8]], [], [[5]]]
    result = model.generate(SOURCE, BeamSearch(6), LENGTH, required=phrases)
    for b, k in existing(result):
        tokens = result.tokens[b, k].tolist()
        for phrase in phrases[b]:
            assert any(tokens[i : i + len(phrase)] == phrase for i in range(len(tokens)))
    free = model.generate(SOURCE, BeamSearch(6), LENGTH)
    assert result.tokens[1, 0].tolist()[: free.lengths[1, 0]] == (
        free.tokens[1, 0, : free.lengths[1, 0]].tolist()
    )
    array = np.array([[[7, 4], [8, 0]], [[0, 0]] * 2, [[5, 0], [5, 0]]])
    assert_same_outputs(result, model.generate(SOURCE, BeamSearch(6), LENGTH, required=array))


def test_one_list_of_required_phrases_is_for_all_outputs(model):
    one = model.generate(SOURCE, BeamSearch(4), LENGTH, required=[[[7, 4]]])
    each = model.generate(SOURCE, BeamSearch(4), LENGTH, required=[[[7, 4]]] * len(SOURCE))
    assert_same_outputs(one, each)


def test_a_prefix_counts_for_required_phrases(model):
    prefix, rows = [[7, 4, 8]] * len(SOURCE), len(SOURCE)
    phrases = {"required": [[[4, 8], [8, 5]]] * rows, "prefix": prefix}
    result = model.generate(SOURCE, BeamSearch(3), 4, **phrases)
    assert (result.tokens[:, 0] == [7, 4, 8, 5]).all()  # 5 completes the second phrase
    with pytest.raises(ValueError, match=r"fit in the rest .* 0 ids .* Received: 1 ids in row 0"):
        model.generate(SOURCE, BeamSearch(3), 3, **phrases)


@pytest.mark.parametrize(
    "required, arguments, message",
    [
        ([[[5, EOS]]], {}, r"no phrase with an id of padding, begin or end. Received: \[5, 3\]"),
        ([[[BOS, 5]]], {}, r"no phrase with an id of padding, begin or end. Received: \[2, 5\]"),
        ([[[PAD, 5]]], {}, r"`required` must be padded"),
        ([[[]]], {}, r"no empty phrase"),
        ([[[5, 99]]], {}, r"`required` must hold ids in \[0, "),
        ([[5]], {}, r"a list of phrases for each source, .* Received: \[\[5\]\]"),
        (5, {}, r"a list of phrases for each source, .* Received: 5"),
        (np.array([[5]]), {}, r"`required` must be \(batch, phrases, length\) .* \(1, 1\)"),
        ([[[5]], [[6]]], {}, r"one for each of 3 sources. Received: 2"),
        ([[[5.5]]], {}, r"`required` must hold integers"),
        ([[[5, 6]]], {"suppressed": [[6]]}, r"also in `suppressed`. Received: 6 in row 0"),
        ([[[5] * 5]], {"max_length": 4}, r"fit in .* 4 ids by .* Received: 5 ids in row 0"),
        ([[[5]]], {"prefix": [[3], [4], [5]]}, r"fit in .* 0 ids by .* Received: 1 ids in row 0"),
        ([[[5]]], {"search": BeamSearch(2, forbidden=(0, 2, 5))}, r"also in `forbidden`"),
        (
            [[[5]]],
            {"search": GreedySearch()},
            r"needs a BeamSearch of one group with a size of at least 2",
        ),
        (
            [[[5]]],
            {"search": Sampling(2)},
            r"needs a BeamSearch of one group with a size of at least 2",
        ),
    ],
    ids=str,
)
def test_required_phrases_that_are_wrong_are_refused(model, required, arguments, message):
    with pytest.raises(ValueError, match=message):
        model.generate(SOURCE, **{"search": BeamSearch(2), **arguments}, required=required)


@each_search
def test_a_prefix_may_end_with_a_completion(model, search):
    prefix, completions = [[4, 5, 6]] * 3, [[[0, 7], [1, 8], [2, 4]]] * 3
    result = model.generate(SOURCE, search, LENGTH, prefix=prefix, completions=completions)
    for b, k in existing(result):
        tokens = result.tokens[b, k].tolist()
        assert tokens[0] in (4, 7) and (tokens[0] == 7 or tokens[1] in (5, 8))
        assert tokens[:2] != [4, 5] or tokens[2] in (6, 4)
    forced = model.generate(SOURCE, search, LENGTH, prefix=prefix)
    assert (result.tokens[:, 0, :3] != forced.tokens[:, 0, :3]).any()
    nothing = np.zeros((3, 1, 2), int)
    again = model.generate(SOURCE, search, LENGTH, prefix=prefix, completions=nothing)
    assert_same_outputs(forced, again)


@pytest.mark.parametrize(
    "completions, message",
    [
        ([[[0, 9]]] * 3, r"`completions` must hold ids from 0 to 8\. Received: 9 to 9"),
        ([[[8, 5]]] * 3, r"`completions` must hold positions from 0 to 7"),
        ([[[0, 5]]] * 2, r"ints of shape \(3, completions, 2\) for 3 prefixes"),
        ([[[0, 5], [1, 5]]] * 3, "`completions` must hold each id at most once in a row.* 5 in"),
        ([[[0.0, 5.0]]] * 3, r"`completions` must be ints .* float64"),
        ([[0, 5]] * 3, r"`completions` must be ints .* shape \(3, 2\)"),
    ],
    ids=str,
)
def test_wrong_completions_are_refused(model, completions, message):
    with pytest.raises(ValueError, match=message):
        model.generate(SOURCE, prefix=[[4]] * 3, completions=completions)


def test_completions_need_a_prefix(model):
    with pytest.raises(ValueError, match=r"`completions` must be ints of shape \(0,"):
        model.generate(SOURCE, completions=[[[0, 5]]] * 3)


def test_options_of_translate_change_the_search():
    search = apply_options(BeamSearch(5, n_best=3), SearchOptions(beam_size=2, no_repeat_ngram=2))
    assert search == BeamSearch(2, n_best=2, no_repeat_ngram=2)
    assert apply_options(Sampling(2, top_k=3), SearchOptions(top_k=0)) == Sampling(2)
    assert apply_options(GreedySearch(), SearchOptions(min_length=2)) == GreedySearch(min_length=2)


@pytest.mark.parametrize(
    "search, options, message",
    [
        (GreedySearch(), {"beam_size": 1}, "`beam_size` must be left out for a GreedySearch"),
        (BeamSearch(), {"temperature": 1.0}, "`temperature` must be left out for a BeamSearch"),
        (BeamSearch(), {"beam_size": 0}, "`beam_size` must be an int of at least 1 and at most"),
        (BeamSearch(4, groups=2), {"beam_size": 2}, "`beam_size` must be left out for a Beam"),
        (BeamSearch(), {"min_length": 2**31}, "`min_length` must be an int of at least 0"),
        (Sampling(), {"temperature": 1e-46}, "`temperature` must be .* Received: 1e-46"),
        (BeamSearch(), {"length_penalty": float("nan")}, "`length_penalty` must be a number of"),
    ],
    ids=str,
)
def test_wrong_options_of_translate_are_named(search, options, message):
    with pytest.raises(ValueError, match=message):
        apply_options(search, SearchOptions(**options))


@each_search
def test_suppressed_ids_are_not_in_outputs(model, search):
    first = [int(row[0]) for row in model.generate(SOURCE, search, LENGTH).tokens[:, 0]]
    suppressed = [[token] if token != EOS else [4] for token in first]
    result = model.generate(SOURCE, search, LENGTH, suppressed=suppressed)
    for tokens, ids in zip(result.tokens, suppressed, strict=True):
        assert not np.isin(tokens, ids).any()
    of_all = model.generate(SOURCE, search, LENGTH, suppressed=[[4, 8]])
    assert not np.isin(of_all.tokens, [4, 8]).any()
    assert_same_outputs(of_all, model.generate(SOURCE, search, LENGTH, suppressed=[[8, 4]] * 3))


@each_search
def test_max_length_may_be_a_function_of_the_source_lengths(model, search):
    def limit(lengths):
        assert lengths.tolist() == [4, 2, 6]
        return lengths + 1

    result = model.generate(SOURCE, search, max_length=limit)
    assert_same_outputs(result, model.generate(SOURCE, search, max_length=np.array([5, 3, 7])))
    assert (result.lengths <= [[5], [3], [7]]).all()


def test_only_samples_with_a_seed_are_repeatable(model):
    seeded, unseeded = Sampling(n=4, seed=1), Sampling(n=4)
    first, second = (model.generate(SOURCE, seeded, LENGTH) for _ in range(2))
    np.testing.assert_array_equal(first.tokens, second.tokens)
    first, second = (model.generate(SOURCE, unseeded, 30).totals for _ in range(2))
    assert (first != second).any()


def test_all_seeds_share_one_compiled_program(monkeypatch):
    model, calls = small(), []
    start = model.start

    def counted(source):
        calls.append(source)
        return start(source)

    monkeypatch.setattr(model, "start", counted)
    searches = [Sampling(n=4, seed=seed) for seed in (1, 2, None)]
    first, second, _ = (model.generate(SOURCE, search, LENGTH) for search in searches)
    # PyTorch does not compile, so it calls the function in every search.
    assert len(calls) == (3 if keras.config.backend() == "torch" else 1)
    assert (first.totals != second.totals).any()
    again = model.generate(SOURCE, searches[1], LENGTH)
    np.testing.assert_array_equal(second.tokens, again.tokens)


BAD_ARGUMENTS = {
    "max_length 0": ({"max_length": 0}, "`max_length` must be a positive integer"),
    "a negative max_length": ({"max_length": -1}, "`max_length` must be a positive integer"),
    "a float": ({"max_length": 2.5}, "`max_length` must be a positive integer"),
    "None": ({"max_length": None}, "`max_length` must be a positive integer"),
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
    "suppressed outside": ({"suppressed": [[9]]}, r"`suppressed` must hold ids in \[0, 9\).*9"),
    "suppressed of two": (
        {"suppressed": [[4], [5]]},
        "`suppressed` must hold one list of ids, or ",
    ),
    "a name": ({"search": "beam"}, "`search` must be a search, such as BeamSearch.*'beam'"),
    "a class": ({"search": BeamSearch}, "`search` must be a search, such as BeamSearch.*<class"),
    "forbidden outside": ({"search": GreedySearch(forbidden=(9,))}, r"`search` must forbid ids in"),
}


@pytest.mark.parametrize("arguments, message", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_invalid_arguments_are_refused_before_the_search(model, monkeypatch, arguments, message):
    def search(*args, **kwargs):
        raise AssertionError("The search was started.")

    monkeypatch.setattr(model, "_compiled_search", search)
    with pytest.raises(ValueError, match=f"Argument {message}|{message}"):
        model.generate(SOURCE, **{"max_length": LENGTH, **arguments})


@pytest.mark.parametrize(
    "target, message",
    [
        ([[4], [], [4]], "`target` must hold no output of only padding. Received: row 1"),
        ([[4], [9], [4]], r"`target` must hold ids in \[0, 9\)"),
        ([[4], [4, 3, 5, 3], [4]], "`target` must hold nothing after the end .* row 1"),
        ([[4], [4]], "`target` must hold one output for each of 3 sources. Received: 2"),
    ],
)
def test_invalid_targets_are_refused(model, target, message):
    with pytest.raises(ValueError, match=message):
        model.score(SOURCE, target)


@pytest.fixture
def quantized():
    """A model that has scored before it was quantized to int8."""
    model = small()
    model.score(padded(SOURCE), padded([[5, 3]] * 3))
    with pytest.warns(UserWarning, match="does not have a `quantize` method"):  # dropout layers
        model.quantize("int8")
    return model


def test_a_quantized_model_scores_with_its_new_weights(quantized):
    source, targets = padded(SOURCE), padded([[5, 6, 3], [7, 3], [3]])
    shifted = np.concatenate([np.full((3, 1), BOS), targets], 1)[:, :-1]
    log_probs = log_softmax(quantized({"source": source, "target": shifted}))
    token_log_probs = np.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
    expected = np.where(targets == PAD, 0, token_log_probs).sum(1)
    np.testing.assert_allclose(quantized.score(source, targets).totals, expected, atol=1e-4)


def test_output_weights_of_a_quantized_model_are_refused(quantized):
    with pytest.raises(ValueError, match=r"`shortlist` of a search, .* Received: weights of int8"):
        quantized.output_weights()
