"""Files that split text, with the vocabulary of a model of another toolkit."""

import json
import struct
from pathlib import Path

import pytest
from copy_artifact import COPY_STEPS, VOCABULARY, make

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.ids import EOS, UNK
from keras_bahdanau_runtime.search_options import encode_constraints
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

FILES = Path(__file__).resolve().parents[1] / "files" / "sentencepiece"
EXPECTED = json.loads((FILES / "expected.json").read_text("utf-8"))
MERGES = ["F u", "Fu ß", "b a", "ba l", "bal l</w>", "a n</w>", "m an</w>"]
CODES = "\n".join(["#version: 0.2", *MERGES, ""])
PIECES = ["ball", "Fuß@@", "man", "x@@", "b@@", "a@@", "ist"]
BALL, FUSS, MAN, X, B, A, IST = range(4, 11)


@pytest.fixture
def codes(tmp_path):
    path = tmp_path / "bpe.codes"
    path.write_text(CODES, encoding="utf-8")
    return path


def names_of(model):
    """The pieces of a SentencePiece model by the ids of `Tokenizer.load`."""
    tokenizer = Tokenizer.load(FILES / f"{model}.model")
    return {index: piece for piece, index in tokenizer.source.get_vocab().items()}


def half_of(names):
    """Every second piece in reverse order, without special pieces."""
    return [names[index] for index in range(len(names) - 1, 3, -2) if " " not in names[index]]


@pytest.mark.parametrize("model", ["unigram", "bpe", "plain"])
def test_sentencepiece_pieces_have_the_ids_of_a_vocabulary(model):
    """The file splits the text, and a piece that the vocabulary lacks is unknown."""
    names = names_of(model)
    vocabulary = ["never", *half_of(names), "<mask>"]
    tokenizer = Tokenizer.from_toolkit(FILES / f"{model}.model", vocabulary)
    assert tokenizer.source_vocabulary_size == 4 + len(vocabulary)
    ids = {piece: index for index, piece in enumerate(vocabulary, start=4)}
    new_ids, unknown = EXPECTED[model]["new_ids"], 0
    for text, original, _ in EXPECTED[model]["texts"]:
        pieces = [names[new_ids[index]] for index in original]
        expected = [*(ids.get(piece, UNK) for piece in pieces), EOS]
        assert tokenizer.encode_source(text) == expected, text
        unknown += expected.count(UNK)
    assert unknown > 9
    texts = [text for text, *_ in EXPECTED[model]["texts"]]
    assert tokenizer.encode_targets(texts) == [tokenizer.encode_target(text) for text in texts]


def test_pieces_that_no_text_is_split_into_are_decoded():
    names = names_of("unigram")
    vocabulary = ["▁cats", "never", "▁n e", *half_of(names)]
    assert "▁cats" not in names.values()
    tokenizer = Tokenizer.from_toolkit(FILES / "unigram.model", vocabulary)
    assert tokenizer.decode([4, 5, 6]) == "catsnever n e"
    assert not {4, 5, 6} & {*tokenizer.encode_source("cats never n e")}


def test_a_character_that_only_the_vocabulary_has_is_a_piece():
    """The tool leaves an unknown character as it is, and the toolkit looks it up."""
    names = names_of("unigram")
    tokenizer = Tokenizer.from_toolkit(FILES / "unigram.model", ["A", *half_of(names), "▁", "▁a"])
    size = tokenizer.source_vocabulary_size
    assert tokenizer.encode_source("A a") == [size - 2, 4, size - 1, EOS]


@pytest.mark.parametrize("model", ["unigram", "bpe"])
def test_missing_pieces_are_split_as_by_sentencepiece(model):
    """`SetVocabulary` of its library, which JoeyNMT calls, made the expected pieces."""
    vocabulary = EXPECTED[model]["vocabulary"]
    tokenizer = Tokenizer.from_toolkit(FILES / f"{model}.model", vocabulary, splits_missing=True)
    ids = {piece: index for index, piece in enumerate(vocabulary, start=4)}
    for text, pieces in EXPECTED[model]["restricted"]:
        expected = [*(ids.get(piece, UNK) for piece in pieces), EOS]
        assert tokenizer.encode_source(text) == expected, text


def test_a_missing_piece_is_split_where_its_characters_are_merged(tmp_path):
    """ "bc" has the best score, so "abc" is merged of "a" and "bc", and not of "ab" and "c"."""
    pieces = [(b"bc", 0), (b"ab", -1), (b"abc", -2), (b"a", -3), (b"b", -4), (b"c", -5)]
    entries = [entry(b"<unk>", 0, b"\x18\x02"), *(entry(*piece) for piece in pieces)]
    settings = b"\x12\x02\x18\x02" + b"\x1a\x04\x18\x00\x20\x00"  # BPE; no space in front
    (tmp_path / "spm.model").write_bytes(b"".join(entries) + settings)
    vocabulary = ["ab", "bc", "a", "b", "c"]
    tokenizer = Tokenizer.from_toolkit(tmp_path / "spm.model", vocabulary, splits_missing=True)
    assert tokenizer.encode_source("abc") == [6, 5, EOS]


def entry(piece, score, kind=b""):
    """A piece in the bytes of a SentencePiece model."""
    fields = b"\x0a" + bytes([len(piece)]) + piece + b"\x15" + struct.pack("<f", score) + kind
    return b"\x0a" + bytes([len(fields)]) + fields


def test_codes_of_subword_nmt_split_words(codes):
    tokenizer = Tokenizer.from_toolkit(codes, PIECES)
    # "ist" consists of characters, because no merge makes it. "x" alone is not "x@@".
    for text, expected in (
        ("Fußball man", [FUSS, BALL, MAN]),
        (" Fußball   xman ", [FUSS, BALL, X, MAN]),
        ("ist", [UNK, UNK, UNK]),
        ("x bb", [UNK, B, UNK]),
        ("bal", [UNK, UNK]),
        ("</w>\tman", [*[UNK] * 5, MAN]),
        ("", []),
    ):
        assert tokenizer.encode_source(text) == [*expected, EOS], text


def test_codes_split_missing_pieces_into_those_of_the_vocabulary(codes):
    """As subword-nmt with a vocabulary: "ba" is split at its merge, and so is "Fu"."""
    tokenizer = Tokenizer.from_toolkit(codes, PIECES, splits_missing=True)
    assert tokenizer.encode_source("bal Fuß") == [B, A, UNK, UNK, UNK, UNK, EOS]


def test_words_are_decoded_with_spaces_between_them(codes):
    tokenizer = Tokenizer.from_toolkit(codes, PIECES)
    ids = [FUSS, BALL, IST, UNK, X, EOS]
    assert tokenizer.decode(ids) == "Fußball ist <unk> x"
    assert tokenizer.target_tokens(ids) == ["Fuß", "ball", " ist", " <unk>", " x", "</s>"]
    assert list(tokenizer.target_decoder().stream([BALL, IST])) == ["ball", " ist"]
    assert tokenizer.target_mark == "" and tokenizer.join_target("a@@ b") == "a@@ b"


def test_a_prefix_may_end_within_a_word(codes):
    tokenizer = Tokenizer.from_toolkit(codes, PIECES)
    constraints = encode_constraints(tokenizer, "Fußb", ["ist"], required=["Fußball"])
    # The shortest piece that starts with "b" spells the prefix, and "ball" may be there instead.
    assert constraints.prefix == (FUSS, B) and constraints.completions == ((1, BALL),)
    assert constraints.required == ((FUSS, BALL),) and constraints.suppressed == (IST,)
    assert encode_constraints(tokenizer, "man ").prefix == (MAN,)


def test_an_artifact_takes_raw_text(codes, tmp_path):
    """The graph copies the source. The next word after "Fußball " has no space in front."""
    others = [f"w{number}" for number in range(VOCABULARY["target"] - 4 - len(PIECES))]
    document = Tokenizer.from_toolkit(codes, [*PIECES, *others])._document()
    translator = Translator(make(tmp_path / "artifact", document=document, steps=COPY_STEPS))
    [translation] = translator.translate(["  Fußball man"])
    assert translation.text == "Fußball man"
    assert translation.source_tokens == ["Fuß", "ball", " man", "</s>"]
    for prefix, text in (("Fußball ", "man"), ("Fußball", " man")):
        [alternative] = translator.alternatives("Fußball man", prefix, count=1)
        assert alternative.text == text


def test_a_tokenizer_with_replacements_is_saved(codes, tmp_path):
    for path, pieces in ((codes, PIECES), (FILES / "bpe.model", half_of(names_of("bpe")))):
        tokenizer = Tokenizer.from_toolkit(path, pieces, splits_missing=True)
        tokenizer.save(tmp_path / "tokenizer.json")
        assert json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))["version"] == 6
        assert Tokenizer.load(tmp_path / "tokenizer.json") == tokenizer
    both = Tokenizer.combine(Tokenizer.from_toolkit(codes, PIECES), tokenizer)
    both.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode_source("man") == [MAN, EOS]


@pytest.mark.parametrize(
    ("replacements", "message"),
    [
        (3, "replacements that are lists of ids. Received: 3"),
        ([[True]], "replacements that are lists of ids"),
        ([[3]], "by 1 to 512 ids each, which are 1 or from 4 to"),
        ([[], [1]], "by 1 to 512 ids each"),
        ([[1] * 513], "by 1 to 512 ids each"),
        ([[99]], "by 1 to 512 ids each"),
        ([[1]] * 99, "by 1 to 512 ids each"),
    ],
)
def test_replacements_of_strangers_are_checked(codes, tmp_path, replacements, message):
    tokenizer = Tokenizer.from_toolkit(codes, PIECES)
    document = tokenizer._document()
    document["spellings"][0]["replacements"] = replacements
    with pytest.raises(ValueError, match=message):
        Tokenizer.parse(json.dumps(document).encode())


def test_replacements_are_of_pieces_with_a_spelling_of_their_own():
    document = Tokenizer.from_pieces(["a"])._document()
    document |= {"version": 6}
    document["spellings"][0]["replacements"] = []
    with pytest.raises(ValueError, match="replacements only in a spelling 'metaspace' or"):
        Tokenizer.parse(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("contents", "pieces", "message"),
    [
        ("#version: 0.1\na b\n", PIECES, "with '#version: 0.2' in the first line"),
        ("#version: 0.2\na b\na\n", PIECES, "line 3: expected two symbols of 1 to 512 characters"),
        (f"#version: 0.2\n{'a' * 513} b\n", PIECES, "line 2: expected two symbols"),
        ("a b\n", PIECES, "expected a SentencePiece model"),
        (CODES, ["und", "und", "und"], "each piece that the file lacks once. .*'und</w>' 3 times"),
        (CODES, ["\ud800"], r"`pieces\[0\]`"),
    ],
)
def test_files_and_vocabularies_of_other_kinds_are_refused(tmp_path, contents, pieces, message):
    (tmp_path / "codes").write_text(contents, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.from_toolkit(tmp_path / "codes", pieces)
    assert "\n" not in str(error.value)


def test_texts_are_encoded_with_the_later_one_of_two_equal_pieces(codes):
    tokenizer = Tokenizer.from_toolkit(codes, ["man", "ball", "man"])
    assert tokenizer.encode_source("man") == [6, EOS]
    assert tokenizer.decode([4, 6]) == "man man"
