"""Tokenizers of Hugging Face and SentencePiece give the pieces of their own libraries."""

import json
from pathlib import Path

import pytest
import tokenizers
from copy_artifact import COPY_STEPS, make
from running_service import site
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from keras_bahdanau_runtime import Translator
from keras_bahdanau_runtime.ids import EOS, SPECIAL, UNK
from keras_bahdanau_runtime.text.tokenizer import Tokenizer

TEXTS = [
    *("a man on a bike", "A dog, a boat!", "", " ", "  two  spaces ", "x\u2581y", "12.5 \u00e9"),
    *(
        "</s> <pad><unk> <s>",
        "</s>",
        "<mask> on",
        "<0x41>",
        "\ufb01sh \uff21",
        "tab\there \U0001f600",
    ),
]
TRAINING = ["a man on a bike", "a dog on a boat", "two men, 3 dogs!"] * 9
NAMES = ["<s>", "<mask>", "</s>", "<unk>"]


def byte_level():
    """Like GPT-2: no space in front, specials at odd places, no unknown piece."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["</s>"], show_progress=False
    )
    return tokenizer, trainer


def unigram():
    """Like T5: unigram pieces with U+2581, normalized."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    squeeze = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), squeeze])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=45, special_tokens=NAMES, unk_token="<unk>", show_progress=False
    )
    return tokenizer, trainer


def byte_fallback():
    """Like Llama 2: byte pairs with U+2581, and bytes for other characters."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, show_progress=False)
    return tokenizer, trainer


def words():
    tokenizer = tokenizers.Tokenizer(models.WordLevel({}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer, trainers.WordLevelTrainer(special_tokens=NAMES, show_progress=False)


@pytest.fixture(scope="module", params=[byte_level, unigram, byte_fallback, words])
def converted(request, tmp_path_factory):
    """The original tokenizer, which matches no special pieces, and ours from its file."""
    tokenizer, trainer = request.param()
    tokenizer.train_from_iterator(TRAINING, trainer)
    document = json.loads(tokenizer.to_str())
    if request.param is byte_fallback:
        document["added_tokens"] = document["added_tokens"][:3]
    path = tmp_path_factory.mktemp("file") / "tokenizer.json"
    path.write_text(json.dumps(document))
    return tokenizers.Tokenizer.from_str(json.dumps({**document, "added_tokens": []})), path


def ids_by_rule(original, text, special):
    """The ids that the rule of the conversion gives for the original pieces."""
    ordinary = [
        piece
        for piece, _ in sorted(original.get_vocab().items(), key=lambda item: item[1])
        if piece not in special
    ]
    new = {piece: len(SPECIAL) + rank for rank, piece in enumerate(ordinary)}
    return [new.get(piece, UNK) for piece in original.encode(text).tokens]


def test_hugging_face_pieces_and_texts_are_those_of_the_original(converted):
    original, path = converted
    tokenizer = Tokenizer.load(path)
    special = {*NAMES, *SPECIAL.values()}
    for text in TEXTS:
        if any(name in text for name in special):
            continue  # the original has them as ordinary pieces here
        ids = tokenizer.encode_target(text)
        assert ids == [*ids_by_rule(original, text, special), EOS], text
        expected = original.decode(original.encode(text).ids, skip_special_tokens=False)
        assert tokenizer.decode(ids) == expected, text
        assert "".join(tokenizer.target_tokens(ids)[:-1]) == expected


def test_special_tokens_in_a_text_are_ordinary_characters(converted, tmp_path):
    _, path = converted
    tokenizer = Tokenizer.load(path)
    for text in ("</s>", "<pad> <mask></s> a", "<s><unk>"):
        ids = tokenizer.encode_source(text)
        assert not {*SPECIAL} - {UNK} & {*ids[:-1]}
        assert "<mask> " not in [tokenizer.source.id_to_token(index) for index in ids]
    tokenizer.save(tmp_path / "saved.json")
    assert Tokenizer.load(tmp_path / "saved.json") == tokenizer


WORD_PIECE = {
    "type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a", "max_input_chars_per_word": 9,
    "continuing_subword_prefix": "##",
}  # fmt: skip
WORD_ENDS = {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}
REGEX = {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "invert": False, "behavior": "Isolated"}
ADDED = {
    **dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False),
    "id": 7,
    "content": "New York",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": WORD_PIECE}, "one with a WordPiece model instead of BPE, Unigram, WordLevel"),
        ({"model": {"type": "x" * 999}}, "one with a x{40} model instead of BPE"),
        ({"model": WORD_ENDS}, "one with the end_of_word_suffix '</w>'"),
        ({"added_tokens": [ADDED]}, "added tokens that are not special.*'New York'"),
        ({"decoder": None, "pre_tokenizer": None}, "pieces that are neither"),
        ({"pre_tokenizer": REGEX}, "only by patterns of this package"),
        ({"model": {"type": "BPE"}}, r"expected a tokenizer\.json of the tokenizers library"),
        ({"model": {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []}}, "id 4294967295 of"),
        ({"model": {"vocab": [["a" * 2049, -1]], "unk_id": 0}}, "'aaaaaaaaaaaa.* of 2049 bytes"),
        ({"added_tokens": {"a": 1}}, r"the added_tokens \{'a': 1\}"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////////"}}, "a charsmap"),
    ],
)
def test_hugging_face_tokenizers_of_other_kinds_are_refused(tmp_path, change, message):
    tokenizer, trainer = byte_level()
    tokenizer.train_from_iterator(["a b"], trainer)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(tokenizer.to_str()), **change}))
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(path)


# Models of SentencePiece, and what its own library makes of some texts; see the README there.
FILES = Path(__file__).resolve().parents[1] / "files" / "sentencepiece"
EXPECTED = json.loads((FILES / "expected.json").read_text("utf-8"))


@pytest.mark.parametrize("name", EXPECTED)
def test_sentencepiece_pieces_and_texts_are_those_of_the_original(name):
    tokenizer = Tokenizer.load(FILES / f"{name}.model")
    for text, ids, decoded in EXPECTED[name]["texts"]:
        received = tokenizer.encode_source(text)
        assert received == [*map(EXPECTED[name]["new_ids"].__getitem__, ids), EOS], text
        assert tokenizer.decode(received).replace("<unk>", " \u2047 ") == decoded, text


def test_files_of_earlier_versions_keep_their_normalizer(tmp_path):
    """Models were trained with its ids, so text is not normalized as by SentencePiece there."""
    tokenizer = Tokenizer.load(FILES / "scripts.model")
    tokenizer.save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert document["version"] == 3
    charsmaps = [spelling.pop("charsmap") for spelling in document["spellings"]]
    precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmaps[0]}
    document["source"]["normalizer"]["normalizers"].insert(0, precompiled)
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "version": 2}))
    earlier = Tokenizer.load(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_str(json.dumps(document["source"]))
    for text in ("ti\u1ebfng", "tie\u0302\u0301ng", "\ufb01\u0301"):
        assert earlier.encode_source(text) == library.encode(text).ids
    decomposed, composed = "tie\u0302\u0301ng", "ti\u1ebfng"
    assert tokenizer.encode_source(decomposed) == tokenizer.encode_source(composed)
    assert earlier.encode_source(decomposed) != earlier.encode_source(composed)


def test_special_tokens_that_are_ordinary_pieces_remain(converted, tmp_path):
    """A piece of each kind that the model finds in text, and a name that it does not find."""
    _, path = converted
    model = json.loads(path.read_text())["model"]
    merged = ["".join(pair) for pair in model.get("merges", [])][:1]
    learned = {"BPE": ["!", *merged], "Unigram": ["!"], "WordLevel": ["dog", "!"]}[model["type"]]
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    before = Tokenizer.load(path)
    tokenizer.add_special_tokens([*learned, "<other>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded == before
    text = "a dog on a boat!"
    assert loaded.decode(loaded.encode_target(text)).replace(" !", "!") == text


def test_words_without_a_piece_of_unknown_text_have_special_tokens(tmp_path):
    """The library encodes no unknown word then, and this package encodes it as unknown."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["b", "<other>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode_source("b a <other>") == [5, 4, UNK, EOS]


def test_artifacts_and_services_have_converted_tokenizers(tmp_path):
    """The graph copies the source, so the translation is the decoded source."""
    Tokenizer.load(FILES / "bpe.model").save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    assert document["version"] == 3
    size = len(document["source"]["model"]["vocab"])
    vocabulary = {"source": size, "target": size}
    artifact = make(
        tmp_path / "artifact", document=document, steps=COPY_STEPS, vocabulary=vocabulary
    )
    pairs = [(text, decoded) for text, _, decoded in EXPECTED["bpe"]["texts"] if text.strip()]
    texts, expected = map(list, zip(*pairs, strict=True))
    translator = Translator(artifact)
    assert [translation.text for translation in translator.translate(texts)] == expected
    assert "".join(translator.stream("a man")) == "a man"
    with site({"copy": artifact}) as service:
        response = service.web.post("/translate", json={"text": texts})
    assert [item["text"] for item in response.json()["translations"]] == expected


def sentencepiece_model(*fields):
    """The bytes of a model with the pieces `a` and `<unk>` and other fields, as (number, bytes)."""
    pieces = [(1, b"\x0a\x01a"), (1, b"\x0a\x05<unk>\x18\x02")]
    return b"".join(map(message_field, *zip(*[*pieces, *fields], strict=True)))


def message_field(number, value):
    """A field of a protobuf message, of up to 16,383 bytes."""
    size = [len(value)] if len(value) < 128 else [len(value) % 128 + 128, len(value) // 128]
    return bytes([number << 3 | 2, *size]) + value


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"\x0a\xff", "expected a SentencePiece model. Received: "),
        (b"", "expected a SentencePiece model. Received: one without pieces"),
        (sentencepiece_model((2, b"\x18\x03")), "one with type word instead of unigram or BPE"),
        (
            sentencepiece_model((1, b"\x0a\x01b\x18\x04"), (1, b"\x0a\x01c\x18\x05")),
            "one with 1 user-defined symbols, 1 unused pieces",
        ),
        (
            sentencepiece_model((2, b"\xc0\x01\x01"), (3, b"\x28\x00")),
            "one with treat_whitespace_as_suffix, escape_whitespaces=false",
        ),
        (sentencepiece_model((1, message_field(1, b"a" * 513))), "piece 2 is 'aaaa"),
        (sentencepiece_model((1, b"\x0a\x01\xff")), "piece 2 is b'.xff'"),
        (sentencepiece_model((1, b"\x0a\x01b\x15\x00\x00\xc0\x7f")), "with the score nan"),
        (sentencepiece_model((1, b"\x0a\x01a")), "each piece once. Received: 'a' 2 times"),
        (sentencepiece_model((3, b"\x12\x05\xff\xff\xff\xff\xff")), "trie of 4294967295"),
    ],
)
def test_sentencepiece_models_of_other_kinds_are_refused(tmp_path, contents, message):
    (tmp_path / "spm.model").write_bytes(contents)
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.load(tmp_path / "spm.model")
    assert "\n" not in str(error.value)


def test_marks_of_a_space_at_the_end_of_a_text_are_removed(tmp_path):
    """SentencePiece removes them with `remove_extra_whitespaces`, in time that is linear."""
    (tmp_path / "spm.model").write_bytes(sentencepiece_model((1, b"\x0a\x03\xe2\x96\x81")))
    tokenizer = Tokenizer.load(tmp_path / "spm.model")
    expected = tokenizer.encode_source("a")
    assert len(expected) == 3
    assert tokenizer.encode_source(" a \u2581\u2581") == expected
    assert len(tokenizer.encode_source("\u2581" * 20_000 + "a")) == 20_003


@pytest.mark.parametrize(
    ("settings", "decoded"),
    [(b"", "a"), (b"\x18\x00", "a"), (b"\x20\x00", "a"), (b"\x18\x00\x20\x00", " a")],
)
def test_a_space_at_the_start_is_removed_as_by_sentencepiece(tmp_path, settings, decoded):
    """It remains with neither `add_dummy_prefix` (3) nor `remove_extra_whitespaces` (4)."""
    fields = [(1, b"\x0a\x04\xe2\x96\x81a"), (3, settings)]
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(*fields))
    tokenizer = Tokenizer.load(tmp_path / "spm.model")
    index = tokenizer.target.token_to_id("\u2581a")
    assert tokenizer.decode([index]) == tokenizer.target.decode([index]) == decoded


def test_byte_pairs_with_too_many_splits_are_refused(tmp_path, monkeypatch):
    fields = [(2, b"\x18\x02"), *((1, message_field(1, b"a" * n)) for n in range(2, 12))]
    (tmp_path / "spm.model").write_bytes(sentencepiece_model(*fields))
    # A piece of n letters has n - 1 splits: 1 + 2 + ... + 10 = 55.
    for limit, message in ((55, None), (54, "merged in more than 54 ways")):
        monkeypatch.setattr("keras_bahdanau_runtime.text.tokenizer_import.MAX_MERGES", limit)
        if message is None:
            assert Tokenizer.load(tmp_path / "spm.model").source_vocabulary_size == 15
        else:
            with pytest.raises(ValueError, match=message):
                Tokenizer.load(tmp_path / "spm.model")
