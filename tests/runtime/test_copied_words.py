"""Words that no vocabulary has, which an output copies from its source."""

import functools
import json
import re

import pytest
from copy_artifact import COPY_SCORE, COPY_STEPS, make_with_options
from hypothesis import given
from hypothesis import strategies as st

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.ids import EOS, PAD, UNK
from keras_bahdanau_runtime.search_options import encode_constraints
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

# Ids of the source: "and" 4, "." 5, "sleeps" 6, copied words 7 and 8.
# Ids of the target: "und" 4, "." 5, "schläft" 6, "Ada" 7, copied words 8 and 9.
SOURCES, TARGETS = ["and", ".", "sleeps"], ["und", ".", "schläft", "Ada"]


@pytest.fixture(scope="module")
def pieces():
    return Tokenizer.from_pieces(SOURCES, TARGETS, copied_words=2)


@functools.cache
def both_sides(kind):
    texts = ["a man"] * 2, ["a Mann"] * 2
    return Tokenizer.train(*texts, kind=kind, joint=False, copied_words=3)


def learned(kind, **arguments):
    texts = ["a man.", "a man."]
    return Tokenizer.train(texts, texts, kind=kind, **arguments)


def test_unknown_words_are_numbered_in_the_order_of_their_first_occurrence(pieces):
    assert (pieces.source_vocabulary_size, pieces.target_vocabulary_size) == (9, 10)
    # "Rex" is 0 and "Max" is 1. There is no third number for "Tom".
    assert pieces.encode_source("Rex . Max . Rex . Tom") == [7, 5, 8, 5, 7, 5, UNK, EOS]
    assert pieces.numbered_words("Rex . Max . Rex . Tom") == ["Rex", "Max"]


def test_known_source_word_without_a_target_piece_uses_up_a_number(pieces):
    # "and" is 0 and keeps its id, so "Rex" is 1, and there is none for "sleeps".
    assert pieces.encode_source("and . Rex and sleeps") == [4, 5, 8, 4, 6, EOS]
    assert pieces.numbered_words("and . Rex and sleeps") == ["and", "Rex"]
    assert pieces.encode_target("and Rex sleeps", "and . Rex and sleeps") == [8, 9, UNK, EOS]


def test_copied_ids_mark_the_words_that_have_numbers(pieces):
    assert pieces.copied_ids() == [PAD, PAD, PAD, PAD, UNK, 5, UNK, UNK, UNK]
    assert len(pieces.copied_ids()) == pieces.source_vocabulary_size


def test_target_words_have_the_numbers_of_their_source(pieces):
    source = "Rex . Ada"
    assert pieces.encode_target("Ada und Rex . Tom", source) == [7, 4, 8, 5, UNK, EOS]
    assert pieces.encode_target("Ada und Rex") == [7, 4, UNK, EOS]
    texts, sources = ["Max .", "Max . Rex", "schläft"], ["Rex", "Rex . Max", "Rex"]
    expected = [[UNK, 5, EOS], [9, 5, 8, EOS], [6, EOS]]
    assert pieces.encode_targets(iter(texts), iter(sources)) == expected
    assert pieces.encode_targets(texts) == [[UNK, 5, EOS], [UNK, 5, UNK, EOS], [6, EOS]]
    with pytest.raises(ValueError, match=r"`sources` must have one text for each of 3.*: 1"):
        pieces.encode_targets(texts, ["Rex"])


def test_outputs_are_decoded_with_the_words_of_their_source(pieces):
    ids, source = [9, 4, 8, 6, EOS], "Rex . Max"
    assert pieces.decode(ids, source) == "Max und Rex schläft"
    assert pieces.target_tokens(ids, source) == ["Max", " und", " Rex", " schläft", "</s>"]
    assert "".join(pieces.target_decoder(source).stream(ids[:-1])) == "Max und Rex schläft"
    # The source has one word with a number, or there is no source.
    assert pieces.decode(ids, "Rex .") == "<unk> und Rex schläft"
    assert pieces.decode(ids) == "<unk> und <unk> schläft"


def test_source_tokens_show_numbered_words(pieces):
    assert pieces.source_tokens("Rex . Max Tom") == ["Rex", " .", " Max", " <unk>", "</s>"]
    known = Tokenizer.from_pieces(SOURCES, TARGETS)
    assert known.source_tokens("Rex .") == ["<unk>", " .", "</s>"]


def test_word_is_the_same_with_and_without_a_space_in_front():
    tokenizer = learned("words", copied_words=3)
    first = tokenizer.source_vocabulary_size - 3
    [known] = tokenizer.encode_source("a")[:-1]
    # The second "Rex" follows a quotation mark, and the first quotation mark a space.
    text = 'Rex "Rex" a'
    assert tokenizer.encode_source(text) == [first, first + 1, first, first + 1, known, EOS]
    assert tokenizer.numbered_words(text) == ["Rex", '"']
    ids = tokenizer.encode_target('a "Rex', text)
    assert tokenizer.decode(ids, text) == 'a " Rex'


def test_symbols_are_copied_with_spaces_between_them():
    tokenizer = Tokenizer.train(["R EH1"] * 2, ["R EH1"] * 2, kind="symbols", copied_words=2)
    text = "R AH0 EH1 T"
    ids = tokenizer.encode_target("T R AH0", text)
    assert tokenizer.decode(ids, text) == "T R AH0"
    assert tokenizer.target_tokens(ids) == ["<unk>", " R", " <unk>", "</s>"]


def test_copied_pieces_of_other_tools_are_joined():
    tokenizer = Tokenizer.from_pieces(["ball", "x@@"], copied_words=2)
    text = "Fuß@@ ball"
    assert tokenizer.encode_target(text, text) == [6, 4, EOS]
    assert tokenizer.decode([6, 4, EOS], text) == "Fußball"


def test_tags_have_no_number_and_are_not_copied():
    texts = ["a\tN", "a\tN"]
    tokenizer = Tokenizer.train(texts, ["a"] * 2, kind="words", has_columns=True, copied_words=2)
    first = tokenizer.source_vocabulary_size - 2
    ids = tokenizer.encode_source("V Rex a\tN;V")
    assert ids[:2] == [first, first + 1] and ids[4] == UNK
    assert tokenizer.encode_sources(["V Rex a\tN;V"]) == [ids]
    assert tokenizer.numbered_words("Rex a\tN;V") == ["Rex"]
    assert tokenizer.copied_ids()[ids[3]] == PAD
    assert tokenizer.source_tokens("V Rex a\tN;V")[3:] == ["\tN", "<unk>", "</s>"]


@pytest.mark.parametrize(("normalization", "joint"), [("nfc", True), ("nfd", False)])
def test_words_are_compared_in_the_form_of_targets(normalization, joint):
    tokenizer = learned("words", joint=joint, normalization=normalization, copied_words=2)
    source = "\u00e9te e\u0301te a"  # one word, composed and decomposed
    first = tokenizer.source_vocabulary_size - 2
    assert tokenizer.encode_source(source)[:2] == [first, first]
    ids = tokenizer.encode_target("e\u0301te", source)
    assert tokenizer.decode(ids, source) == "\u00e9te"


@pytest.mark.parametrize("kind", ["words", "symbols"])
def test_encode_sources_gives_the_ids_of_encode_source(kind):
    tokenizer = learned(kind, copied_words=2, normalization="nfkc")
    texts = ["a man", "Rex  \n a Max\tTom", "", " ", "4\u00bd \ufb01", "</s> <unk> <unk>"]
    expected = [*map(tokenizer.encode_source, texts)]
    assert tokenizer.encode_sources(iter(texts)) == expected
    assert all(ids.count(EOS) == 1 for ids in expected)


@pytest.mark.parametrize("kind", ["words", "symbols"])
@given(
    text=st.lists(st.sampled_from(["a", "man", "Mann", "Rex", '"Rex"', "\t", "4"])).map(" ".join)
)
def test_numbers_follow_from_the_ids_of_a_source(kind, text):
    tokenizer = both_sides(kind)
    ids, copied = tokenizer.encode_source(text), tokenizer.copied_ids()
    # A model numbers the different source ids without a target id, as far as there are numbers.
    distinct = list(dict.fromkeys(index for index in ids if copied[index] == UNK))[:3]
    source_pieces = tokenizer.source_vocabulary_size - 3
    target_pieces = tokenizer.target_vocabulary_size - 3
    words = [tokenizer.decode([target_pieces + number], text) for number in range(len(distinct))]
    assert words == [word.removeprefix(" ") for word in tokenizer.numbered_words(text)]
    for number, index in enumerate(distinct):
        assert index < source_pieces or index == source_pieces + number
    assert len(distinct) == 3 or UNK not in ids


def test_copied_words_are_kept_in_the_file(pieces, tmp_path):
    path = tmp_path / "tokenizer.json"
    pieces.save(path)
    loaded = Tokenizer.load(path)
    assert loaded == pieces and loaded.copied_words == 2
    assert loaded.encode_source("Rex") == [7, EOS]
    document = json.loads(path.read_bytes())
    assert document["version"] == 5
    assert "Rex" not in path.read_text() and len(document["source"]["model"]["vocab"]) == 7
    others = Tokenizer.from_pieces(SOURCES, TARGETS)
    assert loaded != others and loaded != Tokenizer.combine(pieces, pieces, copied_words=3)
    others.save(path)
    assert json.loads(path.read_bytes()).keys() == {
        *("format", "version", "source", "target", "spellings"),
    }


@pytest.mark.parametrize("value", [None, 0, -1, True, 16.0, "16", 1025, 2**40, [16]])
def test_files_with_other_numbers_of_copied_words_are_refused(pieces, tmp_path, value):
    path = tmp_path / "tokenizer.json"
    pieces.save(path)
    document = {**json.loads(path.read_bytes()), "copied_words": value}
    path.write_text(json.dumps(document))
    message = f"expected copied_words from 1 to 1024. Received: {value!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        Tokenizer.load(path)


def test_files_whose_pieces_are_no_words_have_no_copied_words(pieces, tmp_path):
    path = tmp_path / "tokenizer.json"
    pieces.save(path)
    for change in (
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "Lowercase"}},
    ):
        document = json.loads(path.read_bytes())
        document["source"] |= change
        changed = tmp_path / "changed.json"
        changed.write_text(json.dumps(document))
        with pytest.raises(ValueError, match="expected words or symbols on both sides"):
            Tokenizer.load(changed)


@pytest.mark.parametrize("kind", ["bpe", "characters", "bytes", ("words", "bpe")])
def test_other_kinds_have_no_copied_words(kind):
    with pytest.raises(ValueError, match=r"`copied_words` must be 0 unless .* Received: 16"):
        learned(kind, joint=False, copied_words=16)


@pytest.mark.parametrize("count", [-1, 1025, True, 2.0])
def test_invalid_numbers_of_copied_words_are_refused(count):
    with pytest.raises(ValueError, match="`copied_words` must"):
        Tokenizer.from_pieces(["a"], copied_words=count)


def test_combined_tokenizer_has_copied_words_of_its_own(pieces):
    words = learned("words", copied_words=5)
    assert Tokenizer.combine(pieces, words).copied_words == 0
    combined = Tokenizer.combine(pieces, words, copied_words=1)
    assert combined.encode_source("Rex sleeps") == [7, 6, EOS]
    assert combined.decode(combined.encode_target("a Rex", "Rex"), "Rex") == "a Rex"


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """Translator whose outputs have the ids of the sources.

    Both sides have "sleeps" as id 4. Copied words are 5 and 6.
    """
    tokenizer = Tokenizer.from_pieces(["sleeps"], copied_words=2)
    path = tmp_path_factory.mktemp("copied") / "artifact"
    contents = {"document": tokenizer._document(), "steps": COPY_STEPS, "score": COPY_SCORE}
    return Translator(make_with_options(path, **contents), "CPUExecutionProvider", threads=1)


def test_translations_have_the_words_of_their_source(translator):
    texts = ["Rex sleeps", "Max sleeps Ada Rex"]
    first, second = translator.translate(texts, batch_size=2)
    assert first.text == "Rex sleeps"
    assert first.source_tokens == ["Rex", " sleeps", "</s>"]
    assert second.tokens == ["Max", " sleeps", " Ada", " <unk>", "</s>"]
    assert second.source_tokens == ["Max", " sleeps", " Ada", " <unk>", "</s>"]
    assert "".join(translator.stream("Max sleeps Ada")) == "Max sleeps Ada"


@pytest.mark.parametrize("prefix", ["Rex", "Re", "R"])
def test_prefix_may_have_words_of_the_source(translator, prefix):
    # The prefix replaces the first token of the output, which is that of "sleeps".
    text = "sleeps Rex Max"
    [translation] = translator.translate([text], prefixes=[prefix])
    assert translation.text == "Rex Rex Max"
    streamed = "".join(translator.stream(text, prefix=prefix))
    assert streamed.startswith("Rex")


def test_prefix_has_no_words_of_other_sources(translator):
    with pytest.raises(ValueError, match="`prefixes` must hold text that the tokenizer can spell"):
        translator.translate(["sleeps Rex", "sleeps Max"], prefixes=["Rex", "Rex"])


def test_required_phrases_may_have_words_of_the_source(pieces):
    required = encode_constraints(pieces.for_source("Rex . Max"), required=["Max und"]).required
    assert required == ((9, 4),)
    with pytest.raises(ValueError, match="`required` must hold text that the tokenizer can spell"):
        encode_constraints(pieces.for_source("Rex ."), required=["Max und"])


def test_alternatives_may_be_words_of_the_source(translator):
    [best] = translator.alternatives("sleeps Rex", "sleeps", count=1)
    assert best.text == " Rex"
    [best] = translator.alternatives("sleeps Rex", "sleeps ", count=1)
    assert best.text == "Rex"


def test_scored_targets_have_the_words_of_their_source(translator):
    sources, targets = ["Rex sleeps", "sleeps Rex Max"], ["Rex sleeps", "Max Ada"]
    first, second = translator.score(sources, targets)
    assert first.total == -(5 + 4 + EOS) / 8 and second.total == -(6 + UNK + EOS) / 8
    assert first.tokens == ["Rex", " sleeps", "</s>"]
    assert second.tokens == ["Max", " <unk>", "</s>"]
    assert second.source_tokens == ["sleeps", " Rex", " Max", "</s>"]


@pytest.mark.parametrize("copied_words", [0, 2])
def test_piece_that_is_also_a_tag_is_copied_as_itself(copied_words):
    texts = ["N N\tN N"] * 2  # the symbols are "\tN" and " N"
    tokenizer = Tokenizer.train(
        texts, texts, kind="words", has_columns=True, copied_words=copied_words
    )
    [index] = tokenizer.encode_target("N")[:-1]
    [tag] = tokenizer.encode_source("\tN N")[1:-1]
    assert tokenizer.copied_ids()[index] == index and tokenizer.copied_ids()[tag] == PAD
