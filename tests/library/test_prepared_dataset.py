import pickle

import keras
import numpy as np
import pytest
from copy_task import Scores
from hypothesis import given
from hypothesis import strategies as st

from keras_bahdanau.data.bpe_dropout import BPEDropout
from keras_bahdanau.data.order import distinct_first, shaped_batches
from keras_bahdanau.data.prepared_dataset import PreparedDataset
from keras_bahdanau.data.shapes import Shapes, choose_sides
from keras_bahdanau.data.stream import Turns, merge_counts, shares
from keras_bahdanau_runtime.ids import BOS, PAD
from keras_bahdanau_runtime.prepared.corpus import PreparedCorpus
from keras_bahdanau_runtime.prepared.prepare import prepare
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=60)


def make_corpus(folder, tokenizer, pairs, seed, shard_pairs=400, links=False):
    """A corpus whose pairs all differ; lengths are as those of sentences."""
    rng = np.random.default_rng(seed)
    sources, targets = [], []
    for number in range(pairs):
        length = int(np.clip(rng.lognormal(2.5, 0.5), 3, 60))
        sources.append(f"{seed} {number} " + "ab" * length)
        targets.append(f"{seed} {number} " + "ab" * max(1, length + int(rng.integers(-2, 3))))
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
    """The pairs of a batch without padding, checking its form."""
    inputs, labels = batch
    source, target = inputs["source"], inputs["target"]
    assert source.dtype == target.dtype == labels.dtype == "int32"
    assert len(source) == len(labels) and target.shape == labels.shape
    found = []
    for row, label, shifted in zip(source, labels, target, strict=True):
        tx, ty = np.count_nonzero(row), np.count_nonzero(label)
        assert not row[tx:].any() and not label[ty:].any()
        if ty == 0:
            assert tx == 0 and not shifted.any()
            continue
        expected = [BOS, *label[: ty - 1]] + [PAD] * (len(label) - ty)
        assert shifted.tolist() == expected
        found.append((tuple(row[:tx].tolist()), tuple(label[:ty].tolist())))
    return found


def pass_of(dataset, updates):
    return [pair for update in updates for pair in pairs_in(dataset.batch(update))]


def everything(corpus):
    found = []
    for number in range(len(corpus.sizes)):
        shard = corpus.shard(number)
        places = shard.offsets.tolist()
        for row in range(len(shard)):
            a, b, c = places[2 * row : 2 * row + 3]
            found.append((tuple(shard.ids[a:b].tolist()), tuple(shard.ids[b:c].tolist())))
    return sorted(found)


def same(one, other):
    arrays = [{**batch[0], "labels": batch[1]} for batch in (one, other)]
    assert arrays[0].keys() == arrays[1].keys()
    return all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])


@pytest.mark.parametrize("options", [{}, {"batch_tokens": 900}, {"shuffle": False}, {"bucket": 8}])
def test_every_pair_once_a_pass_in_the_same_shapes(corpus, options):
    dataset = PreparedDataset(corpus, batch_size=16, shapes=8, **options)
    steps = len(dataset)
    first, second = (pass_of(dataset, range(p * steps, (p + 1) * steps)) for p in (0, 1))
    assert sorted(first) == sorted(second) == everything(corpus)
    assert (first == second) is (options.get("shuffle") is False)
    shapes = [
        {(*b[0]["source"].shape, b[1].shape[1]) for b in map(dataset.batch, range(start, end))}
        for start, end in ((0, steps), (steps, 2 * steps))
    ]
    assert shapes[0] == shapes[1] <= set(dataset.shapes) and len(dataset.shapes) <= 8
    for rows, tx, ty in dataset.shapes:
        if "batch_tokens" in options:
            assert rows == 900 // (tx + ty)
        else:
            assert rows == 16
        assert tx % options.get("bucket", 1) == ty % options.get("bucket", 1) == 0
    assert dataset.tokens == corpus.tokens == sum(len(target) for _, target in first)


def test_a_batch_is_a_function_of_seed_and_update_alone(corpus):
    dataset = PreparedDataset(corpus, batch_size=16, seed=3, steps=7)
    walked = [dataset.batch(update) for update in range(250)]
    jumping = PreparedDataset(corpus, batch_size=16, seed=3)
    for update in (249, 0, 248, 100, 3, 99, 101):
        assert same(jumping.batch(update), walked[update])
    assert len(dataset) == 7 and len(jumping) == sum(-(-size // 16) for size in corpus.sizes)
    dataset.epoch = 5
    other = pickle.loads(pickle.dumps(dataset))
    for each in (dataset, other):
        assert same(each[2], walked[5 * 7 + 2])
    dataset.on_epoch_end()
    assert dataset.epoch == 6 and same(dataset[1], walked[6 * 7 + 1])
    assert not same(PreparedDataset(corpus, batch_size=16, seed=4).batch(5), walked[5])


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
def test_little_is_padding(corpus, tokenizer, dropout):
    cut = BPEDropout(tokenizer, dropout) if dropout else None
    dataset = PreparedDataset(corpus, batch_size=2, resample=cut)
    tokens = places = 0
    for update in range(len(dataset)):
        inputs, labels = dataset.batch(update)
        tokens += np.count_nonzero(inputs["source"]) + np.count_nonzero(labels)
        places += inputs["source"].size + labels.size
    assert tokens >= 0.9 * places


def test_rows_are_a_multiple(corpus):
    dataset = PreparedDataset(corpus, batch_tokens=900, multiple=4)
    assert all(rows % 4 == 0 and rows * (tx + ty) <= 900 for rows, tx, ty in dataset.shapes)
    assert pass_of(dataset, [0]) != []
    with pytest.raises(ValueError, match="enough for 4 of"):
        PreparedDataset(corpus, batch_tokens=200, multiple=4)


def test_corpora_take_turns(corpus, small):
    both = PreparedDataset([corpus, small], batch_size=16)
    found = pass_of(both, range(len(both)))
    assert sorted(found) == sorted(everything(corpus) + everything(small))
    assert both.tokens == corpus.tokens + small.tokens
    assert "alignment" not in both[0][0]  # one has none

    hot = PreparedDataset([corpus, small], batch_size=16, temperature=1e6)
    batches = [pairs_in(hot.batch(update)) for update in range(3 * len(hot))]
    known = set(everything(small))
    taken = [pairs[0] in known for pairs in batches]
    assert abs(np.mean(taken) - 0.5) < 0.02
    # The small corpus has come several times, each pair once a pass.
    stream = [pair for pairs, ours in zip(batches, taken, strict=True) if ours for pair in pairs]
    size = len(known)
    assert set(stream[:size]) == set(stream[size : 2 * size]) == known


def test_alignments_and_cut(small, caplog):
    dataset = PreparedDataset(small, batch_size=16, max_length=8)
    assert "targets to 8 ids." in caplog.text
    for inputs, labels in (dataset[index] for index in range(len(dataset))):
        assert max(inputs["source"].shape[1], labels.shape[1]) <= 9  # one of TensorFlow's
        rows = np.count_nonzero(labels.any(axis=1))
        expected = np.zeros_like(inputs["alignment"])
        expected[:rows, 0, 0] = expected[:rows, 2, 1] = 1
        np.testing.assert_array_equal(inputs["alignment"], expected)
        assert (labels.max(axis=1) < 262).all()


class Recorded(PreparedDataset):
    """Notes which updates are asked for."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def batch(self, update):
        self.seen.append(update)
        return super().batch(update)


@pytest.mark.parametrize("options", [{"batch_size": 64}, {"batch_tokens": 3000}])
def test_fit_on_any_backend(corpus, options):
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
    assert set(dataset.seen) == set(range(16))
    model.fit(dataset, initial_epoch=4, epochs=6, shuffle=False, verbose=0, callbacks=[follow])
    assert dataset.seen[-4:] == [20, 21, 22, 23]


def test_other_pieces_of_the_same_texts_come_by_the_update(corpus, small, tokenizer):
    def texts(dataset, number):
        steps = dataset.pass_steps
        pairs = pass_of(dataset, range(number * steps, (number + 1) * steps))
        return sorted([tokenizer.decode(ids) for ids in pair] for pair in pairs)

    def made(**options):
        cut = BPEDropout(tokenizer, 0.5)
        return PreparedDataset(corpus, batch_size=16, resample=cut, **options)

    plain, other = PreparedDataset(corpus, batch_size=16), made()
    assert texts(other, 0) == texts(other, 1) == texts(plain, 0)
    for update in (0, 7, other.pass_steps + 7):
        assert len(pairs_in(other.batch(update))) == len(pairs_in(plain.batch(update)))
        assert pairs_in(other.batch(update)) != pairs_in(plain.batch(update))
        assert same(other.batch(update), made().batch(update))
        halves = [made(rank=rank, replicas=2).batch(update) for rank in (0, 1)]
        assert halves[0][1].shape == halves[1][1].shape
        assert sorted(pairs_in(halves[0]) + pairs_in(halves[1])) == sorted(
            pairs_in(other.batch(update))
        )
        inputs, labels = made(bucket=8).batch(update)
        assert inputs["source"].shape[1] % 8 == labels.shape[1] % 8 == 0
    # What is longer than `max_length` by its other pieces is cut.
    longest = max(len(ids) for pair in pairs_in(made(max_length=9).batch(0)) for ids in pair)
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


@given(lengths=LENGTHS, most=st.integers(1, 12), bucket=st.integers(1, 8), rows=st.integers(1, 9),
       seed=st.integers(0, 9), padding=st.sampled_from([0.0, 0.1, 0.5]))  # fmt: skip
def test_shapes_hold_all_pairs_and_batches_are_full(lengths, most, bucket, rows, seed, padding):
    lengths = np.array(lengths)
    known, counts = merge_counts([(lengths, np.ones(len(lengths), int))])
    assert counts.sum() == len(lengths)
    sides = choose_sides(known, counts, most, bucket, padding)
    assert len(sides) <= most and (sides % bucket == 0).all()
    shapes = Shapes(sides, np.full(len(sides), rows))
    kinds = shapes.of(lengths)
    all_there_may_be = choose_sides(known, counts, most, bucket)
    assert len(sides) <= len(all_there_may_be)
    if len(sides) < len(all_there_may_be):
        assert lengths.sum() >= (1 - padding) * sides[kinds].sum() - 1e-6
    assert (sides[kinds] >= lengths).all()
    fits = (sides[None] >= lengths[:, None]).all(axis=-1)
    cheapest = np.where(fits, sides.sum(axis=1), 10**6).min(axis=1)
    np.testing.assert_array_equal(sides[kinds].sum(axis=1), cheapest)

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths))
    batches = shaped_batches(kinds, order, shapes, rng)
    found = [batches[index] for index in range(len(batches))]
    assert sorted(row for chosen, *_ in found for row in chosen) == list(range(len(lengths)))
    for chosen, size, tx, ty in found:
        assert 1 <= len(chosen) <= size == rows
        assert (lengths[chosen] <= [tx, ty]).all()
    # Only a shape that no other holds has a batch with missing rows.
    maximal = {tuple(side) for side, larger in zip(sides, shapes.larger(), strict=True)
               if larger < 0}  # fmt: skip
    missing = [(tx, ty) for chosen, size, tx, ty in found if len(chosen) < size]
    assert len(missing) == len(set(missing)) and set(missing) <= {
        tuple(map(int, m)) for m in maximal
    }


def test_two_clouds_of_lengths_make_two_shapes():
    lengths = np.array([[3, 4], [4, 4], [4, 3], [20, 21], [22, 20]])
    assert choose_sides(lengths, np.ones(5, int), 2).tolist() == [[4, 4], [22, 21]]
    # Many pairs of one length keep a shape of their own.
    sides = choose_sides(lengths, np.array([1, 1, 1, 1000, 1000]), 3)
    assert sides.tolist() == [[4, 4], [20, 21], [22, 20]]
    # 105 tokens in 107 places, and in 110.
    for padding, expected in ((0.02, sides.tolist()), (0.05, [[4, 4], [22, 21]])):
        found = choose_sides(lengths, np.ones(5, int), 5, padding=padding)
        assert found.tolist() == expected


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5),
       temperature=st.sampled_from([0.5, 1.0, 2.0, 5.0]))  # fmt: skip
def test_turns_leave_out_no_batch(sizes, temperature):
    found = shares(sizes, temperature)
    assert (found >= 1).all()
    if temperature == 1.0:
        assert found.tolist() == sizes
    turns = Turns(found, [0])
    for number in (0, 1):
        streams, places = turns(number)
        for stream, share in enumerate(found):
            expected = range(number * share, (number + 1) * share)
            assert places[streams == stream].tolist() == list(expected)


def test_shares_by_hand():
    assert shares([900, 100], 2.0).tolist() == [750, 250]  # as the square roots, 3 to 1
    assert shares([900, 100], 1.0).tolist() == [900, 100]


def test_distinct_first():
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
def test_errors(corpus, options, message):
    with pytest.raises(ValueError, match=message):
        PreparedDataset(corpus, **options)


def test_corpora_must_have_one_tokenizer(corpus, tmp_path):
    other = make_corpus(tmp_path, Tokenizer.train(["a"], ["b"], 260), 30, seed=2)
    with pytest.raises(ValueError, match="prepared with one tokenizer"):
        PreparedDataset([corpus, other])
    with pytest.raises(ValueError, match="at least one corpus"):
        PreparedDataset([])
    with pytest.raises(ValueError, match="`corpora` must be a PreparedCorpus"):
        PreparedDataset(3)
    with pytest.raises(ValueError, match="is not there"):
        PreparedDataset(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="`update`"):
        PreparedDataset(other).batch(-1)


def test_each_pass_cuts_the_words_anew(corpus, tokenizer):
    dataset = PreparedDataset(corpus, batch_size=16, resample=BPEDropout(tokenizer, 0.5))
    first, second = (
        sorted(pass_of(dataset, range(p * len(dataset), (p + 1) * len(dataset)))) for p in (0, 1)
    )
    texts = [
        sorted(tuple(map(tokenizer.decode, pair)) for pair in found) for found in (first, second)
    ]
    assert texts[0] == texts[1] and len(set(first) & set(second)) < 0.1 * len(first)


def test_each_pass_has_its_shards_in_another_order(corpus):
    dataset = PreparedDataset(corpus, batch_size=16)
    shard = {}
    for number in range(len(corpus.sizes)):
        part = corpus.shard(number)
        places = part.offsets.tolist()
        for row in range(len(part)):
            a, b, c = places[2 * row : 2 * row + 3]
            shard[tuple(part.ids[a:b].tolist()), tuple(part.ids[b:c].tolist())] = number
    orders = set()
    for number in range(8):
        found = [
            shard[pairs_in(dataset.batch(number * len(dataset) + i))[0]]
            for i in range(len(dataset))
        ]
        orders.add(tuple(dict.fromkeys(found)))
    assert len(orders) > 1 and all(len(order) == len(corpus.sizes) for order in orders)
