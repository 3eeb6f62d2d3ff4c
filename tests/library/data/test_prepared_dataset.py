import pickle

import keras
import numpy as np
import pytest
from copy_task import Scores
from hypothesis import given
from hypothesis import strategies as st

from keras_bahdanau.data.batching import Shapes, choose_sides, distinct_first, shaped_batches
from keras_bahdanau.data.bpe_dropout import BPEDropout
from keras_bahdanau.data.corpus import PreparedCorpus
from keras_bahdanau.data.corpus_batches import CorpusMixer, cycle_shares, merge_counts
from keras_bahdanau.data.preparation import prepare
from keras_bahdanau.data.prepared_dataset import PreparedDataset
from keras_bahdanau_runtime.ids import BOS, PAD
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=60)


def make_corpus(folder, tokenizer, pairs, seed, shard_pairs=400, links=False):
    """A corpus of distinct pairs with lengths like those of sentences."""
    rng = np.random.default_rng(seed)
    sources, targets = [], []
    for row in range(pairs):
        length = int(np.clip(rng.lognormal(2.5, 0.5), 3, 60))
        sources.append(f"{seed} {row} " + "ab" * length)
        targets.append(f"{seed} {row} " + "ab" * max(1, length + int(rng.integers(-2, 3))))
    files = [folder / f"{seed}.en", folder / f"{seed}.de", folder / f"{seed}.links"]
    for path, lines in zip(files, (sources, targets, ["0-0 1-2"] * pairs), strict=True):
        path.write_text("\n".join([*lines, ""]))
    path = prepare(
        [files[0]], [files[1]], folder / str(seed), tokenizer, [files[2]] if links else None,
        shard_pairs=shard_pairs,
    )  # fmt: skip
    return PreparedCorpus(path)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["ab" * 3] * 2, ["ab"], 262)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer):
    return make_corpus(tmp_path_factory.mktemp("corpora"), tokenizer, 1500, seed=0)


@pytest.fixture(scope="module")
def small(tmp_path_factory, tokenizer):
    return make_corpus(tmp_path_factory.mktemp("corpora"), tokenizer, 300, seed=1, links=True)


def pairs_in(batch):
    """Return the pairs of a batch without padding, after checking shapes, dtypes and shift."""
    inputs, labels = batch
    source, target = inputs["source"], inputs["target"]
    assert source.dtype == target.dtype == labels.dtype == "int32"
    assert len(source) == len(labels) and target.shape == labels.shape
    pairs = []
    for row, label, shifted in zip(source, labels, target, strict=True):
        tx, ty = np.count_nonzero(row), np.count_nonzero(label)
        assert not row[tx:].any() and not label[ty:].any()
        if ty == 0:
            assert tx == 0 and not shifted.any()
            continue
        assert shifted.tolist() == [BOS, *label[: ty - 1]] + [PAD] * (len(label) - ty)
        pairs.append((tuple(row[:tx].tolist()), tuple(label[:ty].tolist())))
    return pairs


def pairs_of(dataset, updates):
    return [pair for update in updates for pair in pairs_in(dataset.batch(update))]


def pairs_of_pass(dataset, number):
    steps = dataset.pass_steps
    return pairs_of(dataset, range(number * steps, (number + 1) * steps))


def shard_of_pairs(corpus):
    """Return `{pair: number of its shard}` for all pairs of a corpus."""
    shards = {}
    for number in range(len(corpus.sizes)):
        shard = corpus.shard(number)
        sides = [tuple(side.tolist()) for side in np.split(shard.ids, shard.offsets[1:-1])]
        shards |= dict.fromkeys(zip(sides[0::2], sides[1::2], strict=True), number)
    return shards


def same(batch, other):
    arrays = [{**inputs, "labels": labels} for inputs, labels in (batch, other)]
    assert arrays[0].keys() == arrays[1].keys()
    return all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])


def test_shares_of_other_corpora_are_added_to_a_pass_over_the_first(corpus, small):
    dataset = PreparedDataset([small, corpus], batch_size=30, shares=[0.6])
    own, others = shard_of_pairs(small), shard_of_pairs(corpus)
    passes = [pairs_of_pass(dataset, number) for number in range(2)]
    for pairs in passes:
        assert sorted(pair for pair in pairs if pair in own) == sorted(own)
        # Every batch but the last of a shape and shard is full.
        assert len(own) / len(pairs) == pytest.approx(0.4, abs=0.05)
        tokens = sum(len(target) for _, target in pairs)
        assert dataset.tokens == pytest.approx(tokens, rel=0.1)
    # The second pass continues in the other corpus.
    assert not {pair for pair in passes[0] if pair in others} & set(passes[1])


@pytest.mark.parametrize("shares", [[], [0.5, 0.1], [0], [1]])
def test_shares_belong_to_all_corpora_but_the_first(corpus, small, shares):
    with pytest.raises(ValueError, match="Argument `shares` must "):
        PreparedDataset([corpus, small], shares=shares)


@pytest.mark.parametrize("options", [{}, {"batch_tokens": 900}, {"shuffle": False}, {"bucket": 8}])
def test_each_pass_has_every_pair_once_in_the_same_shapes(corpus, options):
    dataset = PreparedDataset(corpus, batch_size=16, shapes=8, **options)
    steps = len(dataset)
    first, second = (pairs_of_pass(dataset, number) for number in (0, 1))
    assert sorted(first) == sorted(second) == sorted(shard_of_pairs(corpus))
    assert (first == second) is (options.get("shuffle") is False)
    shapes = [
        {(*b[0]["source"].shape, b[1].shape[1]) for b in map(dataset.batch, range(start, end))}
        for start, end in ((0, steps), (steps, 2 * steps))
    ]
    assert shapes[0] == shapes[1] <= set(dataset.shapes) and len(dataset.shapes) <= 8
    for rows, tx, ty in dataset.shapes:
        assert rows == (900 // (tx + ty) if "batch_tokens" in options else 16)
        assert tx % options.get("bucket", 1) == ty % options.get("bucket", 1) == 0
    assert dataset.tokens == corpus.tokens == sum(len(target) for _, target in first)


def test_a_batch_depends_only_on_the_seed_and_the_update(corpus):
    dataset = PreparedDataset(corpus, batch_size=16, seed=3, steps=7)
    in_order = [dataset.batch(update) for update in range(250)]
    random_access = PreparedDataset(corpus, batch_size=16, seed=3)
    for update in (249, 0, 248, 100, 3, 99, 101):
        assert same(random_access.batch(update), in_order[update])
    assert len(dataset) == 7 and len(random_access) == sum(-(-size // 16) for size in corpus.sizes)
    dataset.epoch = 5
    for copy in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert same(copy[2], in_order[5 * 7 + 2])
    dataset.on_epoch_end()
    assert dataset.epoch == 6 and same(dataset[1], in_order[6 * 7 + 1])
    assert not same(PreparedDataset(corpus, batch_size=16, seed=4).batch(5), in_order[5])


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("options", [{"batch_size": 16}, {"batch_tokens": 900}])
def test_replicas_share_the_rows_of_a_batch(corpus, replicas, options):
    whole = PreparedDataset(corpus, **options)
    parts = [PreparedDataset(corpus, **options, rank=r, replicas=replicas) for r in range(replicas)]
    for update in range(0, len(whole), 5):
        batches = [part.batch(update) for part in parts]
        assert len({inputs["source"].shape for inputs, _ in batches}) == 1
        assert len({labels.shape for _, labels in batches}) == 1
        rows = [pair for batch in batches for pair in pairs_in(batch)]
        assert sorted(rows) == sorted(pairs_in(whole.batch(update)))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_at_most_a_tenth_of_the_positions_is_padding(corpus, tokenizer, dropout):
    bpe_dropout = BPEDropout(tokenizer, dropout) if dropout else None
    dataset = PreparedDataset(corpus, batch_size=2, resample=bpe_dropout)
    tokens = positions = 0
    for update in range(len(dataset)):
        inputs, labels = dataset.batch(update)
        tokens += np.count_nonzero(inputs["source"]) + np.count_nonzero(labels)
        positions += inputs["source"].size + labels.size
    assert tokens >= 0.9 * positions


def test_rows_are_rounded_down_to_a_multiple(corpus):
    dataset = PreparedDataset(corpus, batch_tokens=900, multiple=5)
    # 900 positions hold 12 rows of the longest pair, a source of 36 and a target of 35 ids.
    assert dataset.shapes == [(10, 36, 35)]
    assert len(dataset.batch(0)[1]) == 10 and pairs_of(dataset, [0]) != []
    with pytest.raises(ValueError, match="enough for 4 of"):
        PreparedDataset(corpus, batch_tokens=200, multiple=4)


def test_corpora_are_mixed_by_size_and_temperature(corpus, small):
    both = PreparedDataset([corpus, small], batch_size=16)
    pairs = pairs_of_pass(both, 0)
    assert sorted(pairs) == sorted([*shard_of_pairs(corpus), *shard_of_pairs(small)])
    assert both.tokens == corpus.tokens + small.tokens
    assert "alignment" not in both[0][0]  # the larger corpus has none

    uniform = PreparedDataset([corpus, small], batch_size=16, temperature=1e6)
    batches = [pairs_in(uniform.batch(update)) for update in range(3 * len(uniform))]
    expected = set(shard_of_pairs(small))
    of_small = [pairs for pairs in batches if pairs[0] in expected]
    assert abs(len(of_small) / len(batches) - 0.5) < 0.02
    # The small corpus repeats: each of its passes has every pair once.
    stream, size = [pair for pairs in of_small for pair in pairs], len(expected)
    assert set(stream[:size]) == set(stream[size : 2 * size]) == expected


def test_long_pairs_and_their_alignments_are_cut(small, caplog):
    dataset = PreparedDataset(small, batch_size=16, max_length=8)
    assert "targets to 8 ids." in caplog.text
    for inputs, labels in (dataset[index] for index in range(len(dataset))):
        # On TensorFlow the first batch has one more position.
        assert max(inputs["source"].shape[1], labels.shape[1]) <= 9
        rows = np.count_nonzero(labels.any(axis=1))
        expected = np.zeros_like(inputs["alignment"])
        expected[:rows, 0, 0] = expected[:rows, 2, 1] = 1
        np.testing.assert_array_equal(inputs["alignment"], expected)
        assert (labels.max(axis=1) < 262).all()


class Recorded(PreparedDataset):
    """Records the updates whose batches were made."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.updates = []

    def batch(self, update):
        self.updates.append(update)
        return super().batch(update)


@pytest.mark.parametrize("options", [{"batch_size": 64}, {"batch_tokens": 3000}])
def test_fit_takes_the_batches_of_each_epoch(corpus, options):
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")}
    model = keras.Model(inputs, Scores()(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=keras.config.backend() == "jax")
    dataset = Recorded(corpus, steps=4, shapes=3, **options)
    follow = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(dataset, "epoch", epoch)
    )
    history = model.fit(dataset, epochs=4, shuffle=False, verbose=0, callbacks=[follow])
    assert np.isfinite(history.history["loss"]).all() and int(model.optimizer.iterations) == 16
    assert set(dataset.updates) == set(range(16))
    model.fit(dataset, initial_epoch=4, epochs=6, shuffle=False, verbose=0, callbacks=[follow])
    assert dataset.updates[-4:] == [20, 21, 22, 23]


def test_bpe_dropout_segments_the_same_texts_differently_in_each_update(corpus, small, tokenizer):
    def texts(pairs):
        return sorted([tokenizer.decode(ids) for ids in pair] for pair in pairs)

    def make(**options):
        bpe_dropout = BPEDropout(tokenizer, 0.5)
        return PreparedDataset(corpus, batch_size=16, resample=bpe_dropout, **options)

    plain, resampled = PreparedDataset(corpus, batch_size=16), make()
    first, second = (pairs_of_pass(resampled, number) for number in (0, 1))
    assert texts(first) == texts(second) == texts(pairs_of_pass(plain, 0))
    assert len(set(first) & set(second)) < 0.1 * len(first)
    for update in (0, 7, resampled.pass_steps + 7):
        batch = resampled.batch(update)
        assert len(pairs_in(batch)) == len(pairs_in(plain.batch(update)))
        assert pairs_in(batch) != pairs_in(plain.batch(update))
        assert same(batch, make().batch(update))
        halves = [make(rank=rank, replicas=2).batch(update) for rank in (0, 1)]
        assert halves[0][1].shape == halves[1][1].shape
        assert sorted(pairs_in(halves[0]) + pairs_in(halves[1])) == sorted(pairs_in(batch))
        inputs, labels = make(bucket=8).batch(update)
        assert inputs["source"].shape[1] % 8 == labels.shape[1] % 8 == 0
    # A new segmentation longer than `max_length` is cut.
    longest = max(len(ids) for pair in pairs_in(make(max_length=9).batch(0)) for ids in pair)
    assert longest == 9
    with pytest.raises(ValueError, match="`resample` must be None for corpora with alignments"):
        PreparedDataset(small, resample=BPEDropout(tokenizer, 0.5))


@pytest.mark.parametrize("update", range(0, 40, 4))
def test_the_first_two_batches_differ_on_tensorflow(corpus, update):
    dataset = PreparedDataset(corpus, batch_size=16, shapes=2, steps=4)
    dataset.epoch = update // 4
    first, second = dataset[0], dataset[1]
    if keras.config.backend() == "tensorflow":
        assert first[0]["source"].shape[1] != second[0]["source"].shape[1]
        assert first[1].shape[1] != second[1].shape[1]
    else:
        assert same(first, dataset.batch(update))
    assert pairs_in(first) == pairs_in(dataset.batch(update))
    assert same(second, dataset.batch(update + 1))


@given(lengths=LENGTHS, limit=st.integers(1, 12), bucket=st.integers(1, 8), rows=st.integers(1, 9),
       seed=st.integers(0, 9), padding=st.sampled_from([0.0, 0.1, 0.5]))  # fmt: skip
def test_shapes_hold_all_pairs_and_batches_are_full(lengths, limit, bucket, rows, seed, padding):
    lengths = np.array(lengths)
    distinct, counts = merge_counts([(lengths, np.ones(len(lengths), int))])
    assert counts.sum() == len(lengths)
    sides = choose_sides(distinct, counts, limit, bucket, padding)
    assert len(sides) <= limit and (sides % bucket == 0).all()
    shapes = Shapes(sides, np.full(len(sides), rows))
    kinds = shapes.smallest_for(lengths)
    without_merging = choose_sides(distinct, counts, limit, bucket)
    assert len(sides) <= len(without_merging)
    if len(sides) < len(without_merging):
        assert lengths.sum() >= (1 - padding) * sides[kinds].sum() - 1e-6
    assert (sides[kinds] >= lengths).all()
    fits = (sides[None] >= lengths[:, None]).all(axis=-1)
    cheapest = np.where(fits, sides.sum(axis=1), 10**6).min(axis=1)
    np.testing.assert_array_equal(sides[kinds].sum(axis=1), cheapest)

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths))
    batches = shaped_batches(kinds, order, shapes, rng)
    batches = [batches[index] for index in range(len(batches))]
    assert sorted(row for chosen, *_ in batches for row in chosen) == list(range(len(lengths)))
    for chosen, size, tx, ty in batches:
        assert 1 <= len(chosen) <= size == rows
        assert (lengths[chosen] <= [tx, ty]).all()
    # Only a shape that fits into no other has a batch with missing rows.
    maximal = set(map(tuple, sides[shapes.next_larger() < 0].tolist()))
    missing = [(tx, ty) for chosen, size, tx, ty in batches if len(chosen) < size]
    assert len(missing) == len(set(missing)) and set(missing) <= maximal


def test_two_clusters_of_lengths_make_two_shapes():
    lengths = np.array([[3, 4], [4, 4], [4, 3], [20, 21], [22, 20]])
    assert choose_sides(lengths, np.ones(5, int), 2).tolist() == [[4, 4], [22, 21]]
    # Many pairs of one length have a separate shape.
    sides = choose_sides(lengths, np.array([1, 1, 1, 1000, 1000]), 3)
    assert sides.tolist() == [[4, 4], [20, 21], [22, 20]]
    # 105 tokens in 107 positions, and in 110.
    for padding, expected in ((0.02, sides.tolist()), (0.05, [[4, 4], [22, 21]])):
        assert choose_sides(lengths, np.ones(5, int), 5, padding=padding).tolist() == expected


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5),
       temperature=st.sampled_from([0.5, 1.0, 2.0, 5.0]))  # fmt: skip
def test_mixed_corpora_keep_every_batch_in_order(sizes, temperature):
    batches = cycle_shares(sizes, temperature)
    assert (batches >= 1).all()
    if temperature == 1.0:
        assert batches.tolist() == sizes
    turns = CorpusMixer(batches, [0])
    for number in (0, 1):
        streams, places = turns(number)
        for stream, share in enumerate(batches):
            expected = range(number * share, (number + 1) * share)
            assert places[streams == stream].tolist() == list(expected)


def test_shares_are_proportional_to_powers_of_the_sizes():
    assert cycle_shares([900, 100], 2.0).tolist() == [750, 250]  # 3 to 1
    assert cycle_shares([1000, 20_000], 0.01).tolist() == [1, 21_000]  # to 20^100


def test_a_batch_of_another_shape_comes_second():
    shapes = np.array([[8, 8], [8, 16], [8, 8], [16, 24]])
    assert distinct_first(shapes).tolist() == [0, 3, 1, 2]
    assert distinct_first(np.array([[8, 8], [8, 16]])).tolist() == [0, 1]
    assert distinct_first(np.array([[8, 8]])).tolist() == [0]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "`batch_size`"),
        ({"batch_tokens": 0}, "`batch_tokens`"),
        ({"batch_tokens": 50}, r"`batch_tokens` must be at least \d+, enough for 1 of"),
        ({"batch_size": 6, "multiple": 4}, "`batch_size` must be a multiple of 4"),
        ({"steps": 0}, "`steps`"),
        ({"bucket": 0}, "`bucket`"),
        ({"max_length": 1}, "`max_length`"),
        ({"seed": -1}, "`seed`"),
        ({"replicas": 0}, "`replicas`"),
        ({"replicas": 65}, "`replicas` must be an int of at least 1 and at most 64"),
        ({"rank": 2, "replicas": 2}, "`rank` must be an int of at least 0 and below 2"),
        ({"temperature": 0}, "`temperature`"),
        ({"shapes": 0}, "`shapes`"),
    ],
)
def test_options_out_of_range_are_refused(corpus, options, message):
    with pytest.raises(ValueError, match=message):
        PreparedDataset(corpus, **options)


def test_unusable_corpora_and_updates_are_refused(corpus, tmp_path):
    other = make_corpus(tmp_path, Tokenizer.train(["a"], ["b"], 260), 30, seed=2)
    with pytest.raises(ValueError, match="prepared with one tokenizer"):
        PreparedDataset([corpus, other])
    with pytest.raises(ValueError, match="at least one corpus"):
        PreparedDataset([])
    with pytest.raises(ValueError, match="`corpora` must be a PreparedCorpus"):
        PreparedDataset(3)
    with pytest.raises(ValueError, match="is missing"):
        PreparedDataset(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="`update`"):
        PreparedDataset(other).batch(-1)


def test_each_pass_has_its_shards_in_another_order(corpus):
    dataset, shards = PreparedDataset(corpus, batch_size=16), shard_of_pairs(corpus)
    orders = {
        tuple(dict.fromkeys(shards[pair] for pair in pairs_of_pass(dataset, number)))
        for number in range(8)
    }
    assert len(orders) > 1 and all(len(order) == len(corpus.sizes) for order in orders)
