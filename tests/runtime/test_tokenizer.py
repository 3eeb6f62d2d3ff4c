import bz2
import gzip
import io
import json
import logging
import lzma
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from keras_bahdanau_runtime.ids import BOS, EOS, PAD, UNK
from keras_bahdanau_runtime.text.corpus import read_lines
from keras_bahdanau_runtime.text.parallel import read_parallel
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

SOURCES = ["a man on a bike, 2024", "a woman on a horse", "नमस्ते दुनिया"] * 3
# Frequent enough to become pieces if words were not split at punctuation.
TARGETS = ["ein Mann auf einem Rad", "</s> <pad> <s> <unk> </s></s>", "😀 eine Frau"] * 30
TEXTS = [
    *("", " ", "   leading, trailing  and  double ", "\n\r\n\t", "</s>", "<pad><unk> <s></s>"),
    *("नमस्ते, दुनिया", "👩‍👩‍👧 😀", "12.5 a3", "x\u2028y\x00\ufeff"),
]


@pytest.fixture(scope="module")
def joint():
    return Tokenizer.train(SOURCES, TARGETS, vocabulary_size=400)


@pytest.fixture(scope="module")
def separate():
    return Tokenizer.train(SOURCES, iter(TARGETS), vocabulary_size=300, joint=False)


@given(text=st.text())
def test_any_text_round_trip(joint, text):
    ids = joint.encode_target(text)
    assert joint.decode(ids) == text
    assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])
    tokens = joint.source_tokens(text)
    assert len(tokens) == len(ids)
    assert tokens[-1] == "</s>"
    assert "".join(tokens[:-1]) == text
    assert joint.target_tokens(ids) == tokens
    assert joint.decode(joint.encode_source(text)) == text


@given(ids=st.lists(st.integers(0, 320), max_size=12))
def test_streamed_pieces_join_to_the_decoded_text(joint, ids):
    """Any ids that a model may generate, not only those of a text."""
    ids = [index % joint.target_vocabulary_size for index in ids]
    words = ids[: ids.index(EOS)] if EOS in ids else ids
    decoder = joint.target_decoder()
    streamed = "".join(decoder.add(index) for index in words) + decoder.end()
    assert streamed == joint.decode(ids) == "".join(joint.target_tokens(words))
    shown_ids = [index for index in words if index not in (PAD, BOS)]
    assert streamed == joint._target.decode(shown_ids, skip_special_tokens=False)


def test_decoder_returns_a_character_with_its_last_byte(joint):
    decoder = joint.target_decoder()
    added = [decoder.add(index) for index in joint.encode_target("é€")]
    assert added == ["", "", "é", "", "", "€", "</s>"]
    euro = joint.encode_target("€")[1:-1]
    assert [decoder.add(index) for index in euro[:2]] == ["", ""] and decoder.end() == "\ufffd"
    # An id without a piece ends the unfinished character before it.
    assert decoder.tokens([euro[0], 10**6, PAD]) == ["\ufffd", "<unk>", ""]


def test_encode_sources_equals_encode_source(joint, separate):
    for tokenizer in (joint, separate):
        expected = [tokenizer.encode_source(text) for text in TEXTS]
        assert tokenizer.encode_sources(TEXTS) == expected
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be a str"):
        joint.encode_sources(["a", 1])


def test_frequent_words_are_pieces_and_digits_are_separate(joint):
    assert joint.source_tokens("ein Mann")[:-1] == ["ein", " Mann"]
    assert joint.source_tokens(" Mann 2024")[:-1][-4:] == ["2", "0", "2", "4"]


def test_vowel_signs_and_joiners_do_not_split_words():
    tokenizer = Tokenizer.train(["बत्ती बंद करो?"], ["می‌خواهم"], 600, min_frequency=1)
    assert tokenizer.source_tokens("बत्ती बंद करो?") == ["बत्ती", " बंद", " करो", "?", "</s>"]
    assert tokenizer.target_tokens(tokenizer.encode_target("می‌خواهم")) == ["می‌خواهم", "</s>"]


@given(text=st.text(st.characters(max_codepoint=0x2FF) | st.sampled_from("字ｱ😀„’")))
def test_text_without_marks_is_split_like_in_byte_level(joint, text):
    # Each digit is a word in both. GPT-2's rule splits letters, digits, punctuation and spaces.
    reference = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    words = joint.source.pre_tokenizer.pre_tokenize_str(text)
    assert words == reference.pre_tokenize_str(text)


def test_decode_stops_at_eos_and_ignores_padding(joint):
    ids = joint.encode_target("ein Mann")
    assert joint.decode([BOS, PAD, *ids, *ids, PAD]) == "ein Mann"
    assert joint.target_tokens([BOS, *ids, *ids]) == ["ein", " Mann", "</s>"]
    assert joint.decode(ids[:-1]) == "ein Mann"
    assert joint.decode([]) == "" and joint.target_tokens([]) == []
    ids = joint.encode_target("€")[:2]  # the leading space and the first of three bytes
    assert joint.decode(ids) == "\ufffd"
    assert joint.target_tokens([*ids, EOS]) == ["", "\ufffd", "</s>"]


def test_words_and_characters_that_are_rare_are_unknown():
    texts = ["ein Hund, 12 Hunde", "ein Hund"]
    words = Tokenizer.train(texts, texts, kind="words", min_frequency=3)
    tokens = words.target_tokens(words.encode_target("ein Hund <s>"))
    assert tokens == ["ein", " Hund", "<unk>", "<unk>", "<unk>", "</s>"]
    assert words.target_vocabulary_size == 6
    characters = Tokenizer.train(texts, texts, kind="characters", min_frequency=3)
    assert characters.source_tokens("Hu\u00e9 \n") == ["H", "u", "<unk>", " ", "<unk>", "</s>"]


@pytest.mark.parametrize("kind", ["words", "characters", "symbols", "bytes"])
def test_known_pieces_of_each_kind_give_the_text_back(kind, tmp_path):
    text = "  Der Hund,\n12 H\u00fcte  </s> "
    tokenizer = Tokenizer.train([text], [text], kind=kind, min_frequency=1, joint=False)
    assert tokenizer.target_vocabulary_size <= (260 if kind == "bytes" else 30)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded == tokenizer
    ids = loaded.encode_target(text)
    assert loaded.decode(ids) == text
    assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])


def test_sources_are_decomposed_and_targets_composed():
    texts = [NFC, NFD]
    tokenizer = Tokenizer.train(
        texts, texts, joint=False, min_frequency=1, kind="characters", normalization="nfd"
    )
    assert tokenizer.normalization == "nfd"
    assert tokenizer.source_tokens(NFC) == [*NFD, "</s>"]
    assert tokenizer.decode(tokenizer.encode_target(NFD)) == NFC
    with pytest.raises(ValueError, match="`joint` must be False for nfd, the form of sources"):
        Tokenizer.train(texts, texts, normalization="nfd")


def test_symbols_are_the_parts_between_spaces():
    texts = ["t\u0361\u0255\u0348 a\u02d0  AH0", "AH0"]
    tokenizer = Tokenizer.train(texts, texts, kind="symbols", min_frequency=1)
    tokens = ["t\u0361\u0255\u0348", " a\u02d0", " ", " AH0", "</s>"]
    assert tokenizer.source_tokens(texts[0]) == tokens
    assert tokenizer.target_vocabulary_size == 8
    last = tokenizer.encode_target("AH0")[0]
    assert tokenizer.decode([last, UNK, last]) == "AH0 <unk> AH0"


def test_each_side_has_its_own_kind(tmp_path):
    kinds = ("characters", "symbols")
    tokenizer = Tokenizer.train(["aab"], ["AA1 B"], joint=False, min_frequency=1, kind=kinds)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.source_tokens("ba") == ["b", "a", "</s>"]
    assert loaded.target_tokens(loaded.encode_target("B AA1 AA1")) == ["B", " AA1", " AA1", "</s>"]
    with pytest.raises(ValueError, match="`joint` must be False for sides of two kinds"):
        Tokenizer.train(["a"], ["a"], kind=kinds)


COLUMNS = ["talo N;PL\tN;PL", "auto N\tN N;SG", "N;PL\t"]


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "words", "characters", "symbols", "bytes"])
def test_symbols_of_later_columns_are_pieces_that_no_other_text_has(kind, joint, tmp_path):
    targets = ["talot\t;PL", "N N N"]
    tokenizer = Tokenizer.train(
        COLUMNS, targets, joint=joint, min_frequency=1, kind=kind, has_columns=True
    )
    tokenizer.save(tmp_path / "tokenizer.json")
    assert json.loads((tmp_path / "tokenizer.json").read_bytes())["version"] == 4
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded == tokenizer and loaded.has_columns and loaded.runs_in_browser
    assert loaded.kinds[0] == kind
    expected = [["\tN", ";PL"], ["\tN", " N", ";SG"], ["\t"]]
    symbols, others = set(), set()
    for text, pieces in zip(COLUMNS, expected, strict=True):
        ids, tokens = loaded.encode_source(text), loaded.source_tokens(text)
        assert tokens[-len(pieces) - 1 :] == [*pieces, "</s>"]
        assert "".join(tokens) == f"{text}</s>" and UNK not in ids
        symbols |= {*ids[-len(pieces) - 1 : -1]}
        others |= {*ids[: -len(pieces) - 1]}
    assert len(symbols) == 5 and not symbols & others
    # In a target a tab has no meaning.
    for text in targets:
        ids = loaded.encode_target(text)
        assert loaded.decode(ids) == text and UNK not in ids
        assert not joint or not symbols & {*ids}
    assert loaded.encode_sources(COLUMNS) == [*map(loaded.encode_source, COLUMNS)]
    assert loaded.encode_sources([]) == []


def test_rare_and_unseen_symbols_are_unknown():
    sources = ["a\tN;PL", "a\tN;PL", "a\tN;SG", "a\t\u00e9", "a\te\u0301"]
    tokenizer = Tokenizer.train(sources, ["a"], normalization="nfc", has_columns=True)
    tokens = tokenizer.source_tokens("a\tN;SG;PL")
    assert tokens[-4:] == ["\tN", "<unk>", ";PL", "</s>"]
    assert tokenizer.source_tokens("a\te\u0301")[-2:] == ["\t\u00e9", "</s>"]
    smallest = Tokenizer.train(
        [f"a\t{'N;' * 3}{';'.join(map(str, range(300)))}"],
        *(["a"], 260),
        kind="characters",
        min_frequency=1,
        has_columns=True,
    )
    assert smallest.source_vocabulary_size == 4 + 1 + 260
    assert smallest.source_tokens("a;;")[1:] == ["<unk>", "<unk>", "</s>"]


def test_text_of_a_tokenizer_without_columns_may_have_tabs(joint):
    assert not joint.has_columns
    assert UNK not in joint.encode_source("talo\tN;XYZ")


def test_combined_tokenizer_has_the_columns_of_its_source(joint):
    columns = Tokenizer.train(COLUMNS, ["a"], min_frequency=1, has_columns=True)
    combined = Tokenizer.combine(columns, joint)
    assert combined.encode_source(COLUMNS[0]) == columns.encode_source(COLUMNS[0])
    assert not Tokenizer.combine(joint, columns).has_columns


def test_each_side_of_a_combined_tokenizer_keeps_its_pieces(joint, tmp_path):
    characters = Tokenizer.train(["ab ba"], ["ab ba"], kind="characters", min_frequency=1)
    Tokenizer.combine(joint, characters).save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode_source("ein Mann") == joint.encode_source("ein Mann")
    assert loaded.decode(loaded.encode_target(" ab")) == " ab"
    assert loaded.source_tokens(" ein") == joint.source_tokens(" ein")
    assert not loaded.joint


def test_joint_and_separate_vocabularies(joint, separate):
    assert joint.joint and not separate.joint
    assert joint.source_vocabulary_size == joint.target_vocabulary_size <= 400
    assert 260 < separate.source_vocabulary_size <= 300
    assert 260 < separate.target_vocabulary_size <= 300
    assert separate.encode_source("ein Mann") != separate.encode_target("ein Mann")
    assert joint != separate and joint != "tokenizer"


@pytest.mark.parametrize("name", ["joint", "separate"])
def test_loaded_tokenizer_gives_the_same_ids(name, request, tmp_path):
    tokenizer = request.getfixturevalue(name)
    path = tmp_path / "tokenizer.json"
    path.write_text("replaced")
    tokenizer.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]
    loaded = Tokenizer.load(path)
    assert loaded == tokenizer and loaded.joint == tokenizer.joint
    assert loaded.source_vocabulary_size == tokenizer.source_vocabulary_size
    for text in TEXTS:
        ids = tokenizer.encode_target(text)
        assert ids[-1] == EOS and not {PAD, UNK, BOS, EOS} & set(ids[:-1])
        assert loaded.encode_source(text) == tokenizer.encode_source(text)
        assert loaded.decode(loaded.encode_target(text)) == tokenizer.decode(ids) == text


def test_file_can_be_read_with_the_tokenizers_library(separate, tmp_path):
    separate.save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    source, target = (
        tokenizers.Tokenizer.from_str(json.dumps(document[side])) for side in ("source", "target")
    )
    for text in TEXTS:
        assert source.encode(text).ids == separate.encode_source(text)
        assert target.decode(separate.encode_target(text)[:-1]) == text


def test_failed_save_keeps_the_old_file(joint, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    joint.save(path)
    before = path.read_bytes()

    def replace_on_full_disk(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", replace_on_full_disk)
    with pytest.raises(OSError, match="No space"):
        joint.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text[:-100], "expected JSON in UTF-8"),
        (lambda text: "[]", "expected an object with 'format'"),
        (lambda text: json.dumps({**json.loads(text), "format": "other"}), "Received: .*'other'"),
        (
            lambda text: json.dumps({**json.loads(text), "version": 7}),
            "expected version 1 or 2 or 3 or 4 or 5 or 6",
        ),
        (
            lambda text: json.dumps({**json.loads(text), "version": 2}),
            "two spellings. Received: None",
        ),
        (
            lambda text: json.dumps(
                {**json.loads(text), "version": 2, "spellings": [{"kind": 1}] * 2}
            ),
            "expected a spelling of",
        ),
        (
            lambda text: json.dumps(
                {**json.loads(text), "version": 2, "spellings": [{"mark": "#"}] * 2}
            ),
            "and a mark of",
        ),
        (
            lambda text: json.dumps({**json.loads(text), "version": 2, "spellings": ["bytes", 2]}),
            "expected a spelling. Received: 'bytes'",
        ),
        (
            lambda text: json.dumps(
                {**json.loads(text), "version": 3, "spellings": [{"charsmap": "AAAA"}] * 2}
            ),
            "a charsmap only in a spelling 'metaspace'",
        ),
        (
            lambda text: json.dumps(
                {
                    **json.loads(text),
                    "version": 3,
                    "spellings": [{"kind": "metaspace", "charsmap": "?"}] * 2,
                }
            ),
            "a charsmap that is not base64",
        ),
        (
            lambda text: json.dumps(
                {**json.loads(text), "version": 4, "spellings": [{"has_columns": 1}] * 2}
            ),
            "has_columns true or false",
        ),
        (
            lambda text: json.dumps(
                {**json.loads(text), "version": 4, "spellings": [{"has_columns": True}] * 2}
            ),
            "a spelling of targets without columns",
        ),
        (
            lambda text: json.dumps(
                {
                    **json.loads(text),
                    "version": 4,
                    "spellings": [{"kind": "words", "has_columns": True}, {}],
                }
            ),
            "true only in a spelling 'byte-level'",
        ),
        (
            lambda text: json.dumps(
                {**json.loads(text), "version": 5, "spellings": [{}, {}], "copied_words": 16}
            ),
            "expected words or symbols on both sides for copied_words. Received: 16",
        ),
        (lambda text: json.dumps({**json.loads(text), "source": {"model": 1}}), "be the JSON"),
        (lambda text: json.dumps({**json.loads(text), "source": None}), "'source' to be the JSON"),
        (lambda text: text.replace('"</s>"', '"end"'), "'end'} as its first pieces instead of"),
    ],
)
def test_invalid_files_are_refused(joint, tmp_path, change, message):
    path = tmp_path / "tokenizer.json"
    joint.save(path)
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(path)


def test_truncation_and_padding_in_the_file_are_ignored(joint, tmp_path):
    joint.save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    source = tokenizers.Tokenizer.from_str(json.dumps(document["source"]))
    source.enable_truncation(max_length=8)
    source.enable_padding(length=60)
    document["source"] = json.loads(source.to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    text = "some words that are longer than 8 ids"
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode_source(text) == (
        joint.encode_source(text)
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"vocabulary_size": 259}, "`vocabulary_size` must be an int of at least 260"),
        ({"kind": "letters"}, "`kind` must be one of"),
        ({"min_frequency": 0}, "`min_frequency` must be an int of at least 1"),
        ({"sources": "one string"}, "`sources` must be a list of str"),
        ({"targets": ["a", None]}, r"`targets\[1\]` must be a str"),
        ({"sources": ["a\udc80"]}, r"`sources\[0\]` must be a str without lone surrogates"),
        ({"targets": ["", ""]}, "`targets` must hold a sentence"),
    ],
)
def test_invalid_arguments_of_train_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(**{"sources": ["a"], "targets": ["b"], **arguments})


def test_invalid_ids_and_text_are_refused(joint):
    for index in (-1, joint.target_vocabulary_size):
        with pytest.raises(ValueError, match=f"Received: {index}"):
            joint.decode([index])
    for ids in ([5.0], "5", [[5, 6]], [None]):
        with pytest.raises(ValueError, match="`ids` must be ints"):
            joint.decode(ids)
    assert joint.decode(np.array(joint.encode_target("ein"))) == "ein"
    for text in (None, b"a", "\ud800"):
        with pytest.raises(ValueError, match="`text` must be a str"):
            joint.encode_source(text)


def test_missing_library_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r'pip install "keras-bahdanau\[text\]"'):
        Tokenizer.train(["a"], ["b"])


def zstd():
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return pytest.importorskip(name, reason="zstd is not installed.")


@pytest.mark.parametrize(
    "data, lines",
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\n b \n\nc", ["a", " b ", "", "c"]),
        (b"\xef\xbb\xbfa\n", ["a"]),
        ("x\u2028y\x0bz\x85\rw\n".encode(), ["x\u2028y\x0bz\x85\rw"]),
        (b"\n", [""]),
    ],
)
@pytest.mark.parametrize(
    "name, write",
    [
        ("a.txt", bytes),
        ("a.txt.gz", gzip.compress),
        ("a.txt.bz2", bz2.compress),
        ("a.txt.xz", lzma.compress),
        ("a.txt.zst", "compress"),
    ],
)
def test_lines_of_any_form_and_compression_are_read(tmp_path, name, write, data, lines):
    if name.endswith(".zst"):
        write = zstd().compress
    (tmp_path / name).write_bytes(write(data))
    assert read_lines(tmp_path / name) == lines


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.txt", b"good\n\xff\xfe\n", "a.txt, line 2: not UTF-8"),
        ("a.txt", b"\xef\xbb\xbf\n\ncut \xe2\x82", "a.txt, line 3: not UTF-8"),
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b"\xef\xbb\xbf", "a.txt is empty"),
        ("a.gz", gzip.compress(b"", mtime=0), "a.gz is empty"),
        ("a.gz", b"plain text", "a.gz is not a complete gzip file"),
        ("a.bz2", b"plain text", "a.bz2 is not a complete bzip2 file"),
        ("a.bz2", bz2.compress(b"a line\n" * 99)[:-9], "a.bz2 is not a complete bzip2 file"),
        ("a.xz", b"plain text", "a.xz is not a complete xz file"),
        ("a.xz", lzma.compress(b"a line\n" * 99)[:-9], "a.xz is not a complete xz file"),
        ("a.txt", bz2.compress(b""), "a.txt: expected text. Received: bzip2. .* ends with .bz2"),
        ("a.txt", lzma.compress(b"a"), "a.txt: expected text. Received: xz. Give it"),
        (
            "a.txt",
            gzip.compress(b"a", mtime=0),
            "Received: gzip. Give it a name that ends with .gz",
        ),
        ("a.gz", gzip.compress(gzip.compress(b"a", mtime=0), mtime=0), "gzip. Unpack the file"),
        ("a.gz", gzip.compress(b"\x28\xb5\x2f\xfd", mtime=0), "Received: zstd"),
        ("a.txt", b"PK\x03\x04", "Received: zip"),
        ("a.txt", "a\n".encode("utf-16"), "Received: UTF-16. Convert it"),
        ("a.gz", gzip.compress(b"a line\n" * 99, mtime=0)[:-9], "a.gz is not a complete gzip file"),
        (
            "a.gz",
            gzip.compress(b"a", mtime=0)[:10] + b"\xff" * 20,
            "a.gz is not a complete gzip file",
        ),
    ],
)
def test_read_lines_error_has_file_and_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_lines(tmp_path / name)


def test_damaged_zstd_files_are_refused(tmp_path):
    data = zstd().compress(b"a line\n" * 99)
    for broken in (data[:-9], b"plain text"):
        (tmp_path / "a.zst").write_bytes(broken)
        with pytest.raises(ValueError, match=r"a\.zst is not a complete zstd file"):
            read_lines(tmp_path / "a.zst")


def test_missing_zstd_error_has_the_pip_command(tmp_path, monkeypatch):
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.zst").touch()
    with pytest.raises(ImportError, match=r'pip install "keras-bahdanau\[zstd\]"'):
        read_lines(tmp_path / "a.zst")


@pytest.mark.parametrize("data", [b"a\r\nb", b"\xef\xbb\xbfa\nb\n"])
def test_lines_of_a_stream_are_read_once(tmp_path, data):
    assert read_lines(io.BytesIO(data)) == ["a", "b"]
    (tmp_path / "a.txt").write_bytes(data)
    with (tmp_path / "a.txt").open("rb") as file:
        assert read_lines(file) == ["a", "b"]
        with pytest.raises(ValueError, match=r"a\.txt is empty"):
            read_lines(file)  # at its end
    with pytest.raises(ValueError, match="the stream, line 2: not UTF-8"):
        read_lines(io.BytesIO(b"a\n\xff"))
    for empty in (b"", b"\xef\xbb\xbf"):
        assert read_lines(io.BytesIO(empty), may_be_empty=True) == []


def test_lines_of_a_missing_file_or_a_folder_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_lines(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="is a folder: expected a file"):
        read_lines(tmp_path)


@pytest.mark.parametrize(
    ("data", "counts"),
    [
        (b"a\rb\rc\rd\re\rf\r", "5, of lines 1"),
        (b"a\rb\nc\rd\n", "2, of lines 2"),
        (b"a\rb\nc\nd\n", None),
        (b"a\r\nb\r\n", None),
        (b"a\r", None),
    ],
)
def test_lines_that_carriage_returns_may_end_are_a_warning(tmp_path, caplog, data, counts):
    (tmp_path / "a.txt").write_bytes(data)
    read_lines(tmp_path / "a.txt")
    expected = f"{tmp_path / 'a.txt'}: the number of carriage returns inside lines is {counts}"
    messages = [record.getMessage().partition(". ")[0] for record in caplog.records]
    assert messages == ([] if counts is None else [expected])


def write_pair(folder, source, target):
    (folder / "s.txt").write_text(source, encoding="utf-8")
    (folder / "t.txt").write_text(target, encoding="utf-8")
    return folder / "s.txt", folder / "t.txt"


def test_read_parallel_drops_blank_pairs(tmp_path, caplog):
    paths = write_pair(tmp_path, "a\n\nc\nd\n", "A\nB\n \u3000\nD\n")
    with caplog.at_level(logging.WARNING, "keras_bahdanau"):
        assert read_parallel(*paths) == (["a", "d"], ["A", "D"])
    assert "Dropped 2 of 4 pairs" in caplog.text


@pytest.mark.parametrize(
    ("source", "target", "warnings"),
    [
        ("a\nb\nc\n", "a\nb\nC\n", ["{s} and {t}: 2 of 3 (66.7%) pairs are identical"]),
        ("a\nb\nc\n", "a\nB\nC\n", []),
        ("a\tA\nb\tB\n", "a\nb\n", ["{s}: 2 of 2 (100.0%) lines contain a tab"]),
        ("a\nb\n", "a\tA\nB\n", ["{t}: 1 of 2 (50.0%) lines contain a tab"]),
        ("e\u0301\n", "E\u0301\n", []),  # only the tokenizer's texts matter
    ],
)
def test_read_parallel_warns_of_files_that_cannot_be_right(
    tmp_path, caplog, source, target, warnings
):
    s, t = write_pair(tmp_path, source, target)
    read_parallel(s, t)
    messages = [record.getMessage().partition(". ")[0] for record in caplog.records]
    assert messages == [warning.format(s=s, t=t) for warning in warnings]


NFC, NFD = "caf\u00e9 \uac00", "cafe\u0301 \u1100\u1161"  # e with an acute, and a Hangul syllable


@pytest.mark.parametrize(
    ("normalization", "text", "form"),
    [
        (None, NFD, NFD),
        (None, "\ufb01 \uff37", "\ufb01 \uff37"),
        ("nfc", NFD, NFC),
        ("nfc", "\ufb01 \uff37", "\ufb01 \uff37"),
        ("nfkc", NFD, NFC),
        ("nfkc", "\ufb01 \uff37", "fi W"),  # a ligature and a wide letter
    ],
)
@pytest.mark.parametrize("is_joint", [True, False])
def test_normalization_is_kept_in_the_file(tmp_path, normalization, text, form, is_joint):
    trained = Tokenizer.train(
        [NFC, "fi W"], [NFC, "fi W"], 300, is_joint, normalization=normalization
    )
    trained.save(tmp_path / "tokenizer.json")
    for tokenizer in (trained, Tokenizer.load(tmp_path / "tokenizer.json")):
        assert tokenizer.normalization == normalization
        ids = tokenizer.encode_target(text)
        assert tokenizer.decode(ids) == form
        assert tokenizer.encode_target(form) == ids
        assert tokenizer.encode_sources([text]) == [tokenizer.encode_source(form)]
    with pytest.raises(ValueError, match=r"`normalization` must be one of \('nfc', .*\), or"):
        Tokenizer.train(["a"], ["a"], normalization="NFC")


@pytest.mark.parametrize(
    "source, target, message",
    [
        ("a\nb\n", "A\n", "Received: .*t.txt ends after line 1, .*s.txt goes on"),
        ("a\n\n", "\nB\n", "No pair"),
    ],
)
def test_read_parallel_refuses_files_without_common_pairs(tmp_path, source, target, message):
    with pytest.raises(ValueError, match=message):
        read_parallel(*write_pair(tmp_path, source, target))


# --- Text that is split already -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "text", "ids", "decoded", "tokens"),
    [
        (
            ["a", "b.", "@@"],
            "a  b. c a",
            [4, 5, 1, 4],
            "a b. <unk> a",
            ["a", " b.", " <unk>", " a"],
        ),
        (["Fuß@@", "ball"], "Fuß@@ ball ball", [4, 5, 5], "Fußball ball", ["Fuß", "ball", " ball"]),
        (["Fuß@@", "ball"], "ball Fuß@@", [5, 4], "ball Fuß", ["ball", " Fuß"]),
        (["Fuß@@", "ball"], "Fuß@@ x ball", [4, 1, 5], "Fuß<unk> ball", ["Fuß", "<unk>", " ball"]),
        (["▁Fuß", "ball"], "▁Fuß ball ▁Fuß", [4, 5, 4], "Fußball Fuß", ["Fuß", "ball", " Fuß"]),
        (
            ["a\xa0b"],
            "a\xa0b </s> <s>",
            [4, 1, 1],
            "a\xa0b <unk> <unk>",
            ["a\xa0b"] + [" <unk>"] * 2,
        ),
    ],
)
def test_pieces_of_other_tools_are_joined(pieces, text, ids, decoded, tokens, tmp_path):
    split_text = Tokenizer.from_pieces(["z"], pieces)
    split_text.save(tmp_path / "tokenizer.json")
    for tokenizer in (split_text, Tokenizer.load(tmp_path / "tokenizer.json")):
        assert tokenizer.encode_target(text) == [*ids, EOS]
        assert tokenizer.decode([BOS, *ids, EOS, PAD]) == decoded
        assert tokenizer.target_tokens(ids) == tokens
        assert "".join(tokenizer.target_decoder().stream(ids)) == decoded
        assert tokenizer.encode_source("z") == [4, EOS]
        assert (tokenizer.source_vocabulary_size, tokenizer.joint) == (5, False)
    assert Tokenizer.from_pieces(pieces).joint


@pytest.mark.parametrize(
    ("pieces", "split"),
    [(["Fuß@@", "ball"], "ein Fuß@@ ball"), (["▁Fuß", "ball"], "▁ein ▁Fuß ball")],
)
def test_split_targets_are_joined_and_other_targets_are_kept(pieces, split):
    tokenizer = Tokenizer.from_pieces(pieces)
    assert [tokenizer.join_target(text) for text in (split, "ein  Fußball")] == [
        "ein Fußball", "ein  Fußball",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (["a", "b c"], r"`sources\[1\]` must be a piece without spaces. Received: 'b c'"),
        ([""], r"`sources\[0\]` must be a piece without spaces"),
        (["a", "b", "b"], "`sources` must contain each piece once. Received: 'b' 2 times"),
        ([3], r"`sources\[0\]` must be a str"),
        (["a" * (2**16 + 1)], r"`sources\[0\]` must have at most 65536 char.* Received: 65537"),
        # No file may have more than 2**20, of which 4 are special.
        (["a"] * (2**20 - 3), "`sources` must have at most 1048572 pieces. Received: 1048573"),
    ],
)
def test_invalid_pieces_are_refused(pieces, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_pieces(pieces)


def test_no_file_is_written_that_is_too_large_to_load(tmp_path, monkeypatch):
    tokenizer = Tokenizer.from_pieces(["a"])
    tokenizer.save(tmp_path / "tokenizer.json")
    size = (tmp_path / "tokenizer.json").stat().st_size
    monkeypatch.setattr("keras_bahdanau_runtime.text.tokenizer.MAX_FILE_BYTES", size)
    tokenizer.save(tmp_path / "tokenizer.json")
    monkeypatch.setattr("keras_bahdanau_runtime.text.tokenizer.MAX_FILE_BYTES", size - 1)
    with pytest.raises(ValueError, match=f"at most {size - 1} bytes.* Received: {size} bytes"):
        tokenizer.save(tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()
