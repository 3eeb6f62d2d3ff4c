"""The allowed JSON of a `tokenizers.Tokenizer`, checked before the library parses it.

The library ends the process for some files, and takes gigabytes for others. So a file may only have
the steps and models that `Tokenizer.train` and the importers write, with limits on their sizes.
"""

import base64
import binascii
import itertools
import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from keras_bahdanau_runtime.errors import RunError, require
from keras_bahdanau_runtime.ids import EOS, SPECIAL
from keras_bahdanau_runtime.text.charsmap import CharacterMap
from keras_bahdanau_runtime.text.pieces import WORD_END

MAX_FILE_BYTES = 2**28
# The library allocates memory for the requested size, and aborts the process if that fails.
MAX_VOCABULARY_SIZE = 2**20
MAX_MERGES = 2**20
# Bytes of a piece of a unigram model. The library needs a level of its call stack for each.
# SentencePiece itself allows 512 characters.
_MAX_UNIGRAM_PIECE = 2048
_MAX_SCORE = 1e9
_MAX_STEPS = 32
_MAX_CHARACTERS = 64  # of a text in a step
_MAX_GROWTH = 2048  # bytes of a normalized text per byte of the text

# Text is first split into these parts, and pieces are learned within them: words with the space
# before them, with joiners and marks such as the vowel signs of Devanagari (ByteLevel's own pattern
# splits these off); runs of other characters; space. Matching takes linear time.
WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}[\p{L}\p{M}\x{200C}\x{200D}]*| ?\p{N}+"
    r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
CHARACTERS = r"[\s\S]"
SYMBOLS = " [^ ]*"  # a space is added at the start of each text
# Regular expressions of normalizers, which match in linear time.
MANY_SPACES, OUTER_SPACE, FINAL_MARKS = " {2,}", r"\A | \z", "(?<!\u2581)\u2581+\\z"
# The regular expressions that a file may contain. Another one may never end.
PATTERNS = (WORDS, CHARACTERS, SYMBOLS, MANY_SPACES, OUTER_SPACE, FINAL_MARKS)

POST_PROCESSOR = {
    "type": "TemplateProcessing",
    "single": [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": SPECIAL[EOS], "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {SPECIAL[EOS]: {"id": SPECIAL[EOS], "ids": [EOS], "tokens": [SPECIAL[EOS]]}},
}

_PARTS = {
    *("version", "truncation", "padding", "added_tokens"),
    *("normalizer", "pre_tokenizer", "post_processor", "decoder", "model"),
}
_Check = Callable[[Any], bool]


def _is_never(value: Any) -> bool:
    return False


def _is_empty(value: Any) -> bool:
    return value is None or value == ""


def _is_nothing(value: Any) -> bool:
    return value is None


def _is_vocabulary(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_optional_id(value: Any) -> bool:
    return value is None or type(value) is int


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_optional_bool(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_CHARACTERS


def _is_optional_text(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_character(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 1


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_CHARACTERS


def _is_pattern(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) != 1:
        return False
    [(kind, pattern)] = value.items()
    if kind == "Regex":
        return pattern in PATTERNS
    return kind == "String" and _is_text(pattern) and pattern != ""


def _is_one_of(*values: str) -> _Check:
    return lambda value: isinstance(value, str) and value in values


_BEHAVIOR = _is_one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_BYTE_LEVEL: dict[str, _Check] = {
    "add_prefix_space": _is_bool,
    "trim_offsets": _is_bool,
    "use_regex": _is_bool,
}
_METASPACE: dict[str, _Check] = {
    "replacement": _is_character,
    "str_rep": _is_character,
    "add_prefix_space": _is_bool,
    "prepend_scheme": _is_one_of("first", "never", "always"),
    "split": _is_bool,
}
# The fields of each step, by the type of the step.
_NORMALIZERS: dict[str, dict[str, _Check]] = {
    **{name: {} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")},
    "ByteLevel": {},
    "BertNormalizer": {
        "clean_text": _is_bool,
        "handle_chinese_chars": _is_bool,
        "strip_accents": _is_optional_bool,
        "lowercase": _is_bool,
    },
    "Strip": {"strip_left": _is_bool, "strip_right": _is_bool},
    # The library panics if there is nothing to prepend.
    "Prepend": {"prepend": lambda value: _is_text(value) and value != ""},
    "Replace": {"pattern": _is_pattern, "content": _is_text},
    "Precompiled": {"precompiled_charsmap": lambda value: isinstance(value, str)},
}
_PRE_TOKENIZERS: dict[str, dict[str, _Check]] = {
    **{name: {} for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")},
    "UnicodeScripts": {},
    "ByteLevel": _BYTE_LEVEL,
    "Metaspace": _METASPACE,
    "CharDelimiterSplit": {"delimiter": _is_character},
    "Split": {"pattern": _is_pattern, "behavior": _BEHAVIOR, "invert": _is_bool},
    "Punctuation": {"behavior": _BEHAVIOR},
    "Digits": {"individual_digits": _is_bool},
}
_DECODERS: dict[str, dict[str, _Check]] = {
    "ByteFallback": {},
    "Fuse": {},
    "ByteLevel": _BYTE_LEVEL,
    "Metaspace": _METASPACE,
    "Replace": {"pattern": _is_pattern, "content": _is_text},
    "Strip": {"content": _is_character, "start": _is_count, "stop": _is_count},
    "WordPiece": {"prefix": _is_text, "cleanup": _is_bool},
    "BPEDecoder": {"suffix": _is_text},
}
_MODELS: dict[str, dict[str, _Check]] = {
    "BPE": {
        "vocab": _is_vocabulary,
        "merges": _is_list,
        "unk_token": _is_optional_text,
        "dropout": _is_nothing,
        "continuing_subword_prefix": _is_empty,
        "end_of_word_suffix": lambda value: _is_empty(value) or value == WORD_END,
        "fuse_unk": _is_bool,
        "byte_fallback": _is_bool,
        "ignore_merges": _is_bool,
    },
    "WordLevel": {"vocab": _is_vocabulary, "unk_token": _is_text},
    "Unigram": {"vocab": _is_list, "unk_id": _is_optional_id, "byte_fallback": _is_bool},
}
_STEPS = {
    "normalizer": ("normalizers", _NORMALIZERS),
    "pre_tokenizer": ("pretokenizers", _PRE_TOKENIZERS),
    "decoder": ("decoders", _DECODERS),
}
# Bytes of a normalized text per byte of the text, at most. Steps that are not listed do not grow.
_GROWTH = {
    **{"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 2, "BertNormalizer": 6},
    **{"ByteLevel": 4, "Metaspace": 7},
}


class InvalidTokenizer(ValueError):
    """A tokenizer's JSON has something that is not allowed; the message says what."""


def check_tokenizer(document: Any) -> None:
    """Check the JSON of a tokenizer that this package has written.

    Raises:
        InvalidTokenizer: It has a step, model, size or id that this package does not write.
    """
    check_steps_and_model(document)
    vocabulary = document["model"]["vocab"]
    is_unigram = isinstance(vocabulary, list)
    if is_unigram:
        names = {index: piece for index, (piece, _) in enumerate(vocabulary[: len(SPECIAL)])}
    else:
        names = {index: piece for piece, index in vocabulary.items() if index in SPECIAL}
    # The names of converted tokenizers end with a space.
    special = {index: names.get(index, "").rstrip(" ") for index in SPECIAL}
    if special != SPECIAL:
        raise InvalidTokenizer(f"{reprlib.repr(special)} as its first pieces instead of {SPECIAL}")
    unknown = document.keys() - _PARTS
    if unknown:
        raise InvalidTokenizer(f"the field {reprlib.repr(min(unknown))}")
    for name, expected in (("added_tokens", []), ("post_processor", POST_PROCESSOR)):
        if document.get(name) != expected:
            raise InvalidTokenizer(
                f"the {name} {reprlib.repr(document.get(name))} instead of {reprlib.repr(expected)}"
            )
    if is_unigram:
        count = len({piece for piece, _ in vocabulary})
        if count < len(vocabulary):
            raise InvalidTokenizer(f"{len(vocabulary) - count} pieces that occur twice")
    elif sorted(vocabulary.values()) != [*range(len(vocabulary))]:
        raise InvalidTokenizer(
            f"other ids than those from 0 to {len(vocabulary) - 1}, with gaps or repeated ones"
        )


def check_steps_and_model(document: Any) -> None:
    """Check the parts of a tokenizer's JSON that determine the pieces of a text.

    Raises:
        InvalidTokenizer: A part is not of the library, may take unlimited time or memory, or is
            not supported by this package.
    """
    if not isinstance(document, dict):
        raise InvalidTokenizer(reprlib.repr(document))
    if document.get("version") != "1.0":
        raise InvalidTokenizer(f"the version {reprlib.repr(document.get('version'))}")
    for name, (key, types) in _STEPS.items():
        for step in _flattened(name, key, document.get(name)):
            _check_fields(name, step, types)
    check_growth(document)
    model: Any = document.get("model")
    _check_fields("model", model, _MODELS)
    vocabulary = model.get("vocab")
    if not vocabulary or len(vocabulary) > MAX_VOCABULARY_SIZE:
        raise InvalidTokenizer(
            f"{len(vocabulary or [])} pieces instead of 1 to {MAX_VOCABULARY_SIZE}"
        )
    if model["type"] == "Unigram":
        _check_scores(vocabulary)
        if not 0 <= (model.get("unk_id") or 0) < len(vocabulary):
            raise InvalidTokenizer(f"the unk_id {reprlib.repr(model['unk_id'])}")
    else:
        _check_ids(vocabulary)
    if model["type"] == "BPE":
        _check_merges(model.get("merges"))


def _flattened(name: str, key: str, step: Any) -> Iterator[Any]:
    """Yield the steps of a part, without those of type Sequence."""
    rest, count = [] if step is None else [step], 0
    while rest:
        step, count = rest.pop(), count + 1
        if count > _MAX_STEPS:
            raise InvalidTokenizer(f"a {name} of more than {_MAX_STEPS} steps")
        if isinstance(step, dict) and step.get("type") == "Sequence":
            inner = step.get(key)
            if step.keys() != {"type", key} or not isinstance(inner, list):
                raise InvalidTokenizer(f"the {name} {reprlib.repr(step)}")
            rest += reversed(inner[: _MAX_STEPS + 1])
        else:
            yield step


def _check_fields(name: str, step: Any, types: Mapping[str, Mapping[str, _Check]]) -> None:
    kind = step.get("type") if isinstance(step, dict) else None
    if not isinstance(kind, str) or kind not in types:
        raise InvalidTokenizer(
            f"the {name} {reprlib.repr(step)} instead of one of {', '.join(types)}"
        )
    for field, value in step.items():
        if field == "type" or types[kind].get(field, _is_never)(value):
            continue
        if field == "pattern" and isinstance(value, dict) and "Regex" in value:
            raise InvalidTokenizer(
                f"the regular expression {reprlib.repr(value['Regex'])}, but texts are split only "
                "by patterns of this package, because another one may never end"
            )
        raise InvalidTokenizer(
            f"the {name} {kind} with {reprlib.repr(field)}: {reprlib.repr(value)}"
        )


def check_growth(document: dict[str, Any], growth: float = 1.0) -> None:
    """Check that a text cannot become far longer, and that charsmaps are intact.

    Args:
        document: JSON of a tokenizer whose steps have the right fields.
        growth: Growth of the text before these steps.

    Raises:
        InvalidTokenizer: A text can become too long, or a charsmap is damaged.
    """
    names = "normalizer", "pre_tokenizer"
    parts = (_flattened(name, _STEPS[name][0], document.get(name)) for name in names)
    for step in itertools.chain(*parts):
        if step["type"] == "Replace" and {"pattern", "content"} <= step.keys():
            [pattern] = step["pattern"].values()
            is_text = "String" in step["pattern"]
            replaced = len(pattern.encode("utf-8", "replace")) if is_text else 1
            growth *= max(1, len(step["content"].encode("utf-8", "replace")) / replaced)
        elif step["type"] == "Precompiled":
            growth *= parse_charsmap(step.get("precompiled_charsmap")).growth
        else:
            growth *= _GROWTH.get(step["type"], 1)
    if growth > _MAX_GROWTH:
        raise InvalidTokenizer(f"steps that can make a text more than {_MAX_GROWTH} times longer")


def parse_charsmap(encoded: Any) -> CharacterMap:
    """Return the `CharacterMap` of a charsmap in base64.

    Raises:
        InvalidTokenizer: It is not base64, or `CharacterMap` refuses it.
    """
    try:
        return CharacterMap(base64.b64decode(encoded, validate=True))
    except (TypeError, binascii.Error) as error:
        raise InvalidTokenizer("a charsmap that is not base64") from error
    except ValueError as error:
        raise InvalidTokenizer(str(error)) from error


def _check_ids(vocabulary: Mapping[str, Any]) -> None:
    for piece, index in vocabulary.items():
        # Files of Hugging Face may have gaps.
        if type(index) is not int or not 0 <= index < 2 * MAX_VOCABULARY_SIZE:
            raise InvalidTokenizer(
                f"the id {reprlib.repr(index)} of the piece {reprlib.repr(piece)}"
            )


def _check_merges(merges: Any) -> None:
    if merges is None or len(merges) > MAX_MERGES:
        raise InvalidTokenizer(f"no list of at most {MAX_MERGES} merges")
    for merge in merges:
        is_pair = isinstance(merge, list) and len(merge) == 2
        if not isinstance(merge, str) and not (is_pair and all(isinstance(p, str) for p in merge)):
            raise InvalidTokenizer(f"the merge {reprlib.repr(merge)}")


def _check_scores(vocabulary: list[Any]) -> None:
    """Check the entries of a unigram model, each of a piece and its score."""
    for entry in vocabulary:
        is_entry = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        if not is_entry or type(entry[1]) not in (int, float):
            raise InvalidTokenizer(f"the piece {reprlib.repr(entry)}")
        piece, score = entry
        size = len(piece.encode("utf-8", "replace"))
        if not 0 < size <= _MAX_UNIGRAM_PIECE:
            raise InvalidTokenizer(
                f"the piece {reprlib.repr(piece)} of {size} bytes instead of 1 to "
                f"{_MAX_UNIGRAM_PIECE}"
            )
        if not -_MAX_SCORE <= score <= _MAX_SCORE:  # or not a number
            raise InvalidTokenizer(
                f"the score {reprlib.repr(score)} of the piece {reprlib.repr(piece)}"
            )


def path_error(path: str | os.PathLike[str], expected: str, error: InvalidTokenizer) -> ValueError:
    """Return the error of a file."""
    return ValueError(f"{path}: expected {expected}. Received: one with {error}")


def open_tokenizer(document: dict[str, Any]) -> Any:
    """Return the `tokenizers.Tokenizer` of a document that was checked.

    Raises:
        InvalidTokenizer: The library refuses it.
    """
    lib = require("tokenizers", extra="text")
    try:
        return lib.Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library raises no narrower class
        message = " ".join(str(error).split())
        raise InvalidTokenizer(f"an error of the library: {message[:200]}") from error
    except BaseException as error:
        raise_panic(error)


def raise_panic(error: BaseException) -> NoReturn:
    """Raise the error again; a Rust panic, which is not an `Exception`, as a `RunError`."""
    if type(error).__name__ != "PanicException":
        raise error
    message = " ".join(str(error).split())[:200]
    raise RunError(f"The tokenizers library failed: {message}") from error
