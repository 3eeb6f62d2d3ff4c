"""Tokenizers of SentencePiece and Hugging Face, converted to files of the `tokenizers` library.

Ids are renumbered: 0 to 3 are `<pad>`, `<unk>`, `<s>` and `</s>`, and all other pieces follow in
their original order. Special pieces are spelled with a space behind them. The models see no text
with a space in it, so the name of a special piece in a text is encoded as ordinary characters.
"""

import base64
import json
import math
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from keras_bahdanau_runtime.errors import require
from keras_bahdanau_runtime.ids import SPECIAL, UNK
from keras_bahdanau_runtime.protobuf import build_file, create_pool, message_class
from keras_bahdanau_runtime.text.pieces import META_SPACE, Spelling
from keras_bahdanau_runtime.text.tokenizer_schema import (
    FINAL_MARKS,
    MANY_SPACES,
    MAX_MERGES,
    MAX_VOCABULARY_SIZE,
    OUTER_SPACE,
    POST_PROCESSOR,
    InvalidTokenizer,
    check_steps_and_model,
    open_tokenizer,
    path_error,
)

_MODELS = ("BPE", "Unigram", "WordLevel")
_SURROGATE = re.compile("[\ud800-\udfff]")

# The fields of sentencepiece_model.proto that are used.
_MESSAGES = {
    "ModelProto": "1 pieces *ModelProto.SentencePiece, 2 trainer TrainerSpec, "
    "3 normalizer NormalizerSpec, 5 denormalizer NormalizerSpec",
    "ModelProto.SentencePiece": "1 piece string, 2 score float, 3 type int32",
    "TrainerSpec": "3 model_type int32, 24 whitespace_as_suffix bool, 35 byte_fallback bool",
    "NormalizerSpec": "2 charsmap bytes, 3 add_dummy_prefix bool, 4 remove_extra_whitespaces bool, "
    "5 escape_whitespaces bool",
}
_UNIGRAM, _BPE = 1, 2
_MODEL_TYPES = {_UNIGRAM: "unigram", _BPE: "BPE", 3: "word", 4: "char"}
_MAX_MODEL_BYTES = 2**24
MAX_PIECE = 512  # characters, as in SentencePiece
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)


def split_step(text: str, behavior: str) -> dict[str, Any]:
    """Return the JSON of a step that splits text at another text."""
    pattern = {"String": text}
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


_SPLIT_SPACES = split_step(META_SPACE, "MergedWithNext")
_SPLIT_BYTES = split_step("<0x", "Isolated")


def special_name(index: int) -> str:
    """Return the spelling of a special piece in a converted tokenizer."""
    return f"{SPECIAL[index]} "


def sentencepiece_document(
    contents: bytes, path: str | os.PathLike[str]
) -> tuple[dict[str, Any], Spelling]:
    """Convert a SentencePiece model.

    Args:
        contents: Bytes of the .model file, of type unigram or BPE.
        path: Its name, for messages.

    Returns:
        The JSON of a `tokenizers.Tokenizer`, and the `Spelling` of its pieces.

    Raises:
        ValueError: The file is damaged, or has a setting that `tokenizers` has not.
        MissingDependencyError: protobuf is not installed.
    """
    require("google.protobuf", extra="runtime")
    if len(contents) > _MAX_MODEL_BYTES:
        raise ValueError(
            f"{path}: expected a SentencePiece model of at most {_MAX_MODEL_BYTES} bytes. "
            f"Received: {len(contents)} or more"
        )
    pool = create_pool(build_file("sentencepiece", _MESSAGES, syntax="proto2"))
    model = message_class(pool, "sentencepiece.ModelProto")()
    try:
        model.ParseFromString(contents)
    except Exception as error:  # protobuf's DecodeError, in one of several modules
        raise ValueError(f"{path}: expected a SentencePiece model. Received: {error}") from error
    _check_pieces(model.pieces, path)
    _check_settings(model, path)
    normalizer = model.normalizer
    # proto2 fields without a value have these defaults.
    adds_space = not normalizer.HasField("add_dummy_prefix") or normalizer.add_dummy_prefix
    trims = not normalizer.HasField("remove_extra_whitespaces")
    trims = trims or normalizer.remove_extra_whitespaces
    strips_space = adds_space or trims
    is_unigram = (model.trainer.model_type or _UNIGRAM) == _UNIGRAM
    build = _unigram if is_unigram else _byte_pairs
    splits = []
    if not any(META_SPACE in entry.piece[1:] for entry in model.pieces):
        splits.append(_SPLIT_SPACES)
    if is_unigram and model.trainer.byte_fallback:
        # A unigram model of `tokenizers` would match the piece <0x41> in a text.
        splits.append(_SPLIT_BYTES)
    document = {
        "normalizer": {"type": "Sequence", "normalizers": [*_normalizers(adds_space, trims)]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits} if splits else None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": META_SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *[{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * strips_space,
            ],
        },
    }
    try:
        document["model"] = build(model.pieces, model.trainer.byte_fallback)
    except InvalidTokenizer as error:
        raise path_error(path, "a SentencePiece model of limited size", error) from error
    charsmap = base64.b64encode(normalizer.charsmap).decode() if normalizer.charsmap else None
    spelling = Spelling("metaspace", strips_space=strips_space, charsmap=charsmap)
    return finished(document), spelling


def _check_pieces(pieces: Any, path: Any) -> None:
    """Raise a `ValueError` unless a model has pieces that SentencePiece could have written."""
    if not pieces:
        raise ValueError(f"{path}: expected a SentencePiece model. Received: one without pieces")
    if len(pieces) > MAX_VOCABULARY_SIZE:
        raise ValueError(
            f"{path}: expected a SentencePiece model of at most {MAX_VOCABULARY_SIZE} pieces. "
            f"Received: {len(pieces)}"
        )
    for index, entry in enumerate(pieces):
        piece = entry.piece  # bytes if they are not UTF-8
        is_text = isinstance(piece, str) and 0 < len(piece) <= MAX_PIECE
        if not is_text or not math.isfinite(entry.score):
            raise ValueError(
                f"{path}: expected a SentencePiece model whose pieces have 1 to {MAX_PIECE} "
                f"characters in UTF-8 and a finite score. Received: piece {index} is "
                f"{reprlib.repr(piece)} with the score {entry.score}"
            )
    for piece, count in Counter(entry.piece for entry in pieces).most_common(1):
        if count > 1:
            raise ValueError(
                f"{path}: expected a SentencePiece model with each piece once. "
                f"Received: {piece!r} {count} times"
            )


def _check_settings(model: Any, path: Any) -> None:
    """Raise a `ValueError` that lists all settings of a model that cannot be converted."""
    kind = model.trainer.model_type or _UNIGRAM
    types = [entry.type for entry in model.pieces]
    escapes = model.normalizer
    problems = {
        f"type {_MODEL_TYPES.get(kind, kind)} instead of unigram or BPE": kind
        not in (_UNIGRAM, _BPE),
        "treat_whitespace_as_suffix": model.trainer.whitespace_as_suffix,
        "escape_whitespaces=false": escapes.HasField("escape_whitespaces")
        and not escapes.escape_whitespaces,
        "a denormalizer": bool(model.denormalizer.charsmap),
        f"{types.count(_USER_DEFINED)} user-defined symbols": _USER_DEFINED in types,
        f"{types.count(_UNUSED)} unused pieces": _UNUSED in types,
        "no unknown piece": _UNKNOWN not in types,
    }
    received = [name for name, is_problem in problems.items() if is_problem]
    if received:
        raise ValueError(
            f"{path}: expected a SentencePiece model that can be converted. Received: one with "
            + ", ".join(received)
        )


def _normalizers(adds_space: bool, trims: bool) -> Iterator[dict[str, Any]]:
    """Yield the steps of SentencePiece's normalization that follow its charsmap, in its order."""
    if trims:
        yield {"type": "Replace", "pattern": {"Regex": MANY_SPACES}, "content": " "}
        yield {"type": "Replace", "pattern": {"Regex": OUTER_SPACE}, "content": ""}
    if adds_space:
        yield {"type": "Prepend", "prepend": META_SPACE}
    yield {"type": "Replace", "pattern": {"String": " "}, "content": META_SPACE}
    if trims:  # SentencePiece also removes marks that were in the text, but only at its end
        yield {"type": "Replace", "pattern": {"Regex": FINAL_MARKS}, "content": ""}


def sentencepiece_steps() -> list[dict[str, Any]]:
    """Return the steps of normalization and of splitting that a converted model may have."""
    return [*_normalizers(True, True), _SPLIT_SPACES, _SPLIT_BYTES]


def _unigram(pieces: Any, byte_fallback: bool) -> dict[str, Any]:
    special = [[special_name(index), 0.0] for index in sorted(SPECIAL)]
    return {
        "type": "Unigram",
        "unk_id": UNK,
        "vocab": [*special, *([name, entry.score] for name, entry in _ordinary_pieces(pieces))],
        "byte_fallback": byte_fallback,
    }


def _byte_pairs(pieces: Any, byte_fallback: bool) -> dict[str, Any]:
    """Return a BPE model whose merges are all splits of each piece into two, best score first."""
    ordinary = list(_ordinary_pieces(pieces))
    ranks = {
        entry.piece: (-entry.score, rank)
        for rank, (_, entry) in enumerate(ordinary)
        if entry.type in (0, _NORMAL)
    }
    merges = []
    for piece, rank in ranks.items():
        merges += [
            (rank, ranks[piece[:place]], ranks[piece[place:]], piece[:place], piece[place:])
            for place in range(1, len(piece))
            if piece[:place] in ranks and piece[place:] in ranks
        ]
        if len(merges) > MAX_MERGES:
            raise InvalidTokenizer(f"pieces that are merged in more than {MAX_MERGES} ways")
    names = [*map(special_name, sorted(SPECIAL)), *(name for name, _ in ordinary)]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": special_name(UNK),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": {name: index for index, name in enumerate(names)},
        "merges": [[left, right] for *_, left, right in sorted(merges)],
    }


def _ordinary_pieces(pieces: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name in the converted vocabulary, and the entry, of pieces that are not special."""
    for entry in pieces:
        if entry.type == _CONTROL and entry.piece not in SPECIAL.values():
            yield f"{entry.piece} ", entry
        elif entry.type not in (_CONTROL, _UNKNOWN):
            yield entry.piece, entry


def hugging_face_document(
    document: dict[str, Any], path: str | os.PathLike[str]
) -> tuple[dict[str, Any], Spelling]:
    """Convert the `tokenizer.json` of a Hugging Face tokenizer.

    Args:
        document: Contents of the file. The model is BPE, Unigram or WordLevel.
        path: Its name, for messages.

    Returns:
        As `sentencepiece_document`.

    Raises:
        ValueError: It is no file of the `tokenizers` library, or of an unsupported kind.
    """
    try:
        document, added = _current_form(document)
        special = _special_tokens(document, added)
    except InvalidTokenizer as error:
        expected = "a tokenizer.json of the tokenizers library that can be converted"
        raise path_error(path, expected, error) from error
    spelling = _spelling(document)
    if spelling is None:
        raise ValueError(
            f"{path}: expected a Hugging Face tokenizer of a supported kind. Received: one with "
            "pieces that are neither of ByteLevel nor of Metaspace nor words"
        )
    is_unigram = document["model"]["type"] == "Unigram"
    renumber = _renumber_unigram if is_unigram else _renumber
    document["model"] = renumber(document["model"], special)
    return finished(document), spelling


def _current_form(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a checked document as the library writes it now, and the added tokens.

    Raises:
        InvalidTokenizer: The document is not of a supported kind.
    """
    model, tokens = document.get("model"), document.get("added_tokens") or []
    if not isinstance(model, dict):
        raise InvalidTokenizer(f"the model {reprlib.repr(model)}")
    if not isinstance(tokens, list):
        raise InvalidTokenizer(f"the added_tokens {reprlib.repr(tokens)}")
    for token in tokens:
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or _SURROGATE.search(content):
            raise InvalidTokenizer(f"the added token {reprlib.repr(token)}")
    added = [token["content"] for token in tokens if not token.get("special")]
    kind = model.get("type") or _inferred_type(model)
    name = kind[:40] if isinstance(kind, str) and kind.isalnum() else reprlib.repr(kind)
    problems = {
        f"a {name} model instead of {', '.join(_MODELS)}": kind not in _MODELS,
        **{
            f"the {field} {reprlib.repr(model.get(field))}": bool(model.get(field))
            for field in ("continuing_subword_prefix", "end_of_word_suffix")
        },
        f"added tokens that are not special, such as {reprlib.repr(added[:3])}": bool(added),
    }
    received = [name for name, is_problem in problems.items() if is_problem]
    if received:
        raise InvalidTokenizer(", ".join(received))
    # Only parts that are converted; the library does not parse the others.
    parts = "version", "normalizer", "pre_tokenizer", "decoder"
    checked = {name: document[name] for name in parts if name in document}
    checked["model"] = {**model, "type": kind} | ({"dropout": None} if kind == "BPE" else {})
    check_steps_and_model(checked)
    # The library writes fields of older files in their current form.
    checked = json.loads(open_tokenizer({**checked, "added_tokens": []}).to_str())
    return checked, [token["content"] for token in tokens]


def _inferred_type(model: dict[str, Any]) -> str:
    """Return the type of a model of an older file, which does not contain it."""
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordLevel"


def _special_tokens(document: dict[str, Any], added: list[str]) -> set[str]:
    """Return the added tokens that leave the vocabulary, and the piece of unknown text.

    Pieces that the model also finds in ordinary text remain. They are characters, results of merges
    and bytes of BPE, words, and pieces of Unigram with the negative score that learned ones have.
    """
    model = document["model"]
    if model["type"] == "Unigram":
        unknown = set() if model["unk_id"] is None else {model["vocab"][model["unk_id"]][0]}
        learned = {piece for piece, score in model["vocab"] if score < 0}
        return (set(added) - learned) | unknown
    if model["type"] == "WordLevel":
        # With our piece of unknown text, because the model need not have its own.
        renumbered = _renumber(model, {model["unk_token"]})
        tokenizer = open_tokenizer({**document, "model": renumbered})
        words = {token for token in added if token in tokenizer.encode(token).tokens}
        return (set(added) - words) | {model["unk_token"]}
    special = {*added, model["unk_token"] or ""}
    merged = {"".join(pair) for pair in model["merges"]}
    if model["byte_fallback"]:
        merged.update(f"<0x{byte:02X}>" for byte in range(256))
    return {token for token in special if len(token) != 1 and token not in merged}


def _renumber_unigram(model: dict[str, Any], special: set[str]) -> dict[str, Any]:
    ordinary = [entry for entry in model["vocab"] if entry[0] not in special]
    added = [[special_name(index), 0.0] for index in sorted(SPECIAL)]
    return {**model, "unk_id": UNK, "vocab": [*added, *ordinary]}


def _renumber(model: dict[str, Any], special: set[str]) -> dict[str, Any]:
    ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
    ordinary = [piece for piece in ordered if piece not in special]
    names = [*map(special_name, sorted(SPECIAL)), *ordinary]
    vocabulary = {name: index for index, name in enumerate(names)}
    model = {**model, "unk_token": special_name(UNK), "vocab": vocabulary}
    if "merges" in model:
        model["merges"] = [
            pair for pair in model["merges"] if {*pair, "".join(pair)} <= vocabulary.keys()
        ]
    return model


def _spelling(document: dict[str, Any]) -> Spelling | None:
    """Return how a Hugging Face tokenizer spells text in pieces, or `None` if in another way."""
    steps = [
        step
        for name in ("normalizer", "pre_tokenizer", "decoder")
        for step in steps_of(document[name])
    ]
    types = {step["type"] for step in steps}
    adds_space = any(
        step["type"] == "Prepend"
        or (step["type"] == "Strip" and step.get("start"))
        or (step["type"] == "Metaspace" and step["prepend_scheme"] != "never")
        for step in steps
    )
    if "ByteLevel" in types:
        adds_space |= any(
            step["type"] == "ByteLevel" and step["add_prefix_space"]
            for step in steps_of(document["pre_tokenizer"])
        )
        return Spelling("byte-level", strips_space=adds_space)
    marks = {step.get("replacement", step.get("content")) for step in steps}
    if META_SPACE in marks and types & {"Metaspace", "Replace"}:
        return Spelling("metaspace", strips_space=adds_space)
    splits_words = types & {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
    if document["model"]["type"] == "WordLevel" and not document["decoder"] and splits_words:
        return Spelling("words")
    return None


def steps_of(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer, pre-tokenizer or decoder."""
    if part:
        inner = [value for value in part.values() if isinstance(value, list)]
        if part["type"] == "Sequence":
            for step in inner[0]:
                yield from steps_of(step)
        else:
            yield part


def finished(document: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a tokenizer that ends every text with `EOS`, and matches no special."""
    return {
        "version": "1.0",
        **document,
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "post_processor": POST_PROCESSOR,
    }
