"""Tokenizers of toolkits: a file that splits text, and the vocabulary of a model.

A toolkit splits text by a SentencePiece model or by codes of subword-nmt, and looks up each piece
in the vocabulary of the model, which may lack pieces, have others, and has another order. Here the
ids of the vocabulary come first. Pieces that it lacks follow, because other pieces are found
through them, and each has a replacement. Pieces of the vocabulary that no text is split into are
spelled with a space in front, which the models never see.
"""

import os
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from keras_bahdanau_runtime.ids import SPECIAL, UNK
from keras_bahdanau_runtime.text.pieces import BYTE_PIECE, WORD_END, Spelling
from keras_bahdanau_runtime.text.split_text import CONTINUES
from keras_bahdanau_runtime.text.tokenizer_import import (
    MAX_PIECE,
    finished,
    sentencepiece_document,
    sentencepiece_steps,
    special_name,
    split_step,
    steps_of,
)
from keras_bahdanau_runtime.text.tokenizer_schema import MAX_MERGES

_CODES_START = b"#version:"
_CODES_VERSION = "#version: 0.2"
_MAX_CODES_BYTES = 2**24
_MAX_MERGED = 32  # characters of a piece that are merged one by one
_SPLIT_WORDS = split_step(" ", "Removed")


def toolkit_document(
    contents: bytes, path: str | os.PathLike[str], pieces: Sequence[str], splits_missing: bool
) -> tuple[dict[str, Any], Spelling]:
    """Convert a file that splits text for a vocabulary.

    Args:
        contents: Bytes of a SentencePiece model, or of codes of subword-nmt.
        path: Its name, for messages.
        pieces: Pieces of the vocabulary in the order of their ids, which start at 4. If a piece
            occurs twice, texts are encoded with the last one.
        splits_missing: Whether a piece that the vocabulary lacks is split into pieces that it has.
            Otherwise it is unknown.

    Returns:
        The JSON of a `tokenizers.Tokenizer`, and the `Spelling` of its pieces.

    Raises:
        ValueError: As `sentencepiece_document`; the codes are damaged or of another version; or a
            piece that the file lacks occurs twice.
        MissingDependencyError: protobuf is not installed.
    """
    if contents.startswith(_CODES_START):
        document, spelling = _codes_document(contents, path)
        names = [_word_end_name(piece) for piece in pieces]
    else:
        document, spelling = sentencepiece_document(contents, path)
        names = list(pieces)
    names = _matched_names(names, document["model"], path)
    if document["model"]["type"] == "Unigram":
        model, replacements = _unigram(document["model"], names, splits_missing)
    else:
        model, replacements = _byte_pairs(document["model"], names, splits_missing)
    return {**document, "model": model}, replace(spelling, replacements=replacements)


def _codes_document(contents: bytes, path: Any) -> tuple[dict[str, Any], Spelling]:
    """Convert codes of subword-nmt, the merges of byte-pair encoding.

    Text is split at spaces. The characters of a word are merged, of which the last one has the
    suffix `</w>`.
    """
    if len(contents) > _MAX_CODES_BYTES:
        raise ValueError(
            f"{path}: expected codes of subword-nmt of at most {_MAX_CODES_BYTES} bytes. "
            f"Received: {len(contents)} or more"
        )
    try:
        version, *lines = contents.decode("utf-8").rstrip("\r\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected codes of subword-nmt in UTF-8: {error}") from error
    if version.strip() != _CODES_VERSION:
        raise ValueError(
            f"{path}: expected codes of subword-nmt with {_CODES_VERSION!r} in the first line. "
            f"Received: {reprlib.repr(version)}"
        )
    if len(lines) > MAX_MERGES:
        raise ValueError(f"{path}: expected at most {MAX_MERGES} merges. Received: {len(lines)}")
    merges = dict[tuple[str, str], None]()  # of equal merges the first one counts
    for number, line in enumerate(lines, start=2):
        parts = line.strip("\r\n ").split(" ")
        if len(parts) != 2 or not all(0 < len(part) <= MAX_PIECE for part in parts):
            raise ValueError(
                f"{path}, line {number}: expected two symbols of 1 to {MAX_PIECE} characters. "
                f"Received: {reprlib.repr(line)}"
            )
        merges[parts[0], parts[1]] = None
    symbols = dict.fromkeys(
        symbol for left, right in merges for symbol in (left, right, left + right)
    )
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": special_name(UNK),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": WORD_END,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {symbol: index for index, symbol in enumerate(symbols)},
        "merges": [[*pair] for pair in merges],
    }
    document = {
        "normalizer": None,
        "pre_tokenizer": _SPLIT_WORDS,
        "decoder": {"type": "BPEDecoder", "suffix": WORD_END},
        "model": model,
    }
    return finished(document), Spelling("word-ends", strips_space=False)


def is_converted(document: dict[str, Any]) -> bool:
    """Return whether all steps of a tokenizer are those of SentencePiece or subword-nmt.

    Args:
        document: JSON of a `tokenizers.Tokenizer`.
    """
    toolkit_steps = [*sentencepiece_steps(), _SPLIT_WORDS]
    steps = [*steps_of(document["normalizer"]), *steps_of(document["pre_tokenizer"])]
    model = document["model"]
    is_toolkit_model = model["type"] == "Unigram" or (
        model["type"] == "BPE" and not model["ignore_merges"]
    )
    return is_toolkit_model and all(step in toolkit_steps for step in steps)


def _word_end_name(piece: str) -> str:
    """Return the symbol of a piece of subword-nmt, such as `Fuß` of "Fuß@@", or `ball</w>`."""
    return piece.removesuffix(CONTINUES) if piece.endswith(CONTINUES) else f"{piece}{WORD_END}"


def _matched_names(names: list[str], model: dict[str, Any], path: Any) -> list[str]:
    """Return the names of a vocabulary, with a space in front of those no text is split into."""
    pieces = {*_scores_or_ids(model)}
    last = {name: index for index, name in enumerate(names)}
    matched = [
        name
        if last[name] == index and (name in pieces or _is_new_character(name, model))
        else f" {name}"
        for index, name in enumerate(names)
    ]
    for name, count in Counter(matched).most_common(1):
        if count > 1:
            raise ValueError(
                f"{path}: expected a vocabulary with each piece that the file lacks once. "
                f"Received: {reprlib.repr(name[1:])} {count} times"
            )
    return matched


def _scores_or_ids(model: dict[str, Any]) -> dict[str, Any]:
    """Return the pieces that take part in splitting, without special ones."""
    items = model["vocab"].items() if isinstance(model["vocab"], dict) else model["vocab"]
    return {piece: value for piece, value in items if " " not in piece}


def _is_new_character(name: str, model: dict[str, Any]) -> bool:
    """Whether a name that the model lacks is a character, which the tool leaves as it is."""
    character = name.removesuffix(model.get("end_of_word_suffix") or "")
    return len(character) == 1 and character != " " and not model["byte_fallback"]


def _unigram(
    model: dict[str, Any], names: list[str], splits_missing: bool
) -> tuple[dict[str, Any], tuple[tuple[int, ...], ...]]:
    scores = _scores_or_ids(model)
    # An unknown character has a lower score than any piece, so this one changes no other splits.
    lowest = min(scores.values(), default=0.0)
    missing = set(scores).difference(names)
    if splits_missing:  # into the best pieces that remain; characters and bytes always remain
        missing = {piece for piece in missing if len(piece) == 1 or BYTE_PIECE.fullmatch(piece)}
    vocabulary = [
        *([special_name(index), 0.0] for index in sorted(SPECIAL)),
        *([name, 0.0 if name.startswith(" ") else scores.get(name, lowest)] for name in names),
        *([name, score] for name, score in scores.items() if name in missing),
    ]
    return {**model, "vocab": vocabulary}, ((UNK,),) * len(missing)


def _byte_pairs(
    model: dict[str, Any], names: list[str], splits_missing: bool
) -> tuple[dict[str, Any], tuple[tuple[int, ...], ...]]:
    present = {*names}
    missing = [name for name in _scores_or_ids(model) if name not in present]
    ordered = [*map(special_name, sorted(SPECIAL)), *names, *missing]
    vocabulary = {name: index for index, name in enumerate(ordered)}
    replacements: dict[str, tuple[int, ...]] = dict.fromkeys(missing, (UNK,))
    if splits_missing:
        ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
        first = dict[str, tuple[str, str]]()  # merge of each piece
        for pair in ranks:
            first.setdefault("".join(pair), pair)
        for name in sorted(first.keys() & replacements.keys(), key=len):  # shorter pieces first
            pair = first[name]
            if not model["end_of_word_suffix"] and len(name) <= _MAX_MERGED:
                pair = _last_merge(name, ranks) or pair
            parts = (replacements.get(part, (vocabulary[part],)) for part in pair)
            replacements[name] = tuple(index for part in parts for index in part)
    return {**model, "vocab": vocabulary}, tuple(replacements.values())


def _last_merge(piece: str, ranks: Mapping[tuple[str, str], int]) -> tuple[str, str] | None:
    """Return the merge that completes a piece when its characters are merged, or `None`.

    SentencePiece splits a piece there. subword-nmt splits at the first merge of its codes.
    """
    parts = list(piece)
    while len(parts) > 2:
        pairs = [*enumerate(pairwise(parts))]
        place, pair = min(pairs, key=lambda item: ranks.get(item[1], len(ranks)))
        if pair not in ranks:
            return None
        parts[place : place + 2] = ["".join(pair)]
    left, right = parts
    return (left, right) if (left, right) in ranks else None
