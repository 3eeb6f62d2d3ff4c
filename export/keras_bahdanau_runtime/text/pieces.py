"""The artifact's tokenizers, and the readable piece of text behind each id."""

import json
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.errors import CorruptArtifactError, UnsupportedArtifactError, require
from keras_bahdanau_runtime.signature import (
    BOS_ID,
    EOS_TOKEN,
    PAD_ID,
    TOKENIZER_FORMAT,
    TOKENIZER_VERSION,
)


def read_tokenizers(path: Path) -> tuple[Any, Any]:
    """Returns the source and the target tokenizer; a joint one is both."""
    tokenizers = require("tokenizers", extra="runtime")
    try:
        document = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptArtifactError(f"{path}: expected JSON in UTF-8. Received: {error}") from error
    if not isinstance(document, dict) or document.get("format") != TOKENIZER_FORMAT:
        raise CorruptArtifactError(
            f"{path}: expected an object with 'format': {TOKENIZER_FORMAT!r}."
        )
    if document.get("version") != TOKENIZER_VERSION:
        raise UnsupportedArtifactError(
            f"{path}: expected version {TOKENIZER_VERSION}. Received: {document.get('version')!r}"
        )
    sides = [document.get("source")]
    if document.get("target") is not None:
        sides.append(document["target"])
    loaded = []
    for side in sides:
        try:
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(side))
        except Exception as error:  # the library raises nothing narrower
            raise CorruptArtifactError(
                f"{path}: expected the JSON of a tokenizer. Received: {error}"
            ) from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        loaded.append(tokenizer)
    return loaded[0], loaded[-1]


def source_pieces(text: str, encoding: Any) -> list[str]:
    """Returns the slice of `text` behind each id of its encoding, the last one `"</s>"`."""
    spans = encoding.offsets[:-1]  # the last token is the end of the sentence
    starts = [start for start, _ in spans[1:]] + [len(text)]
    # The bytes of one character share its span: cutting at the next start leaves it to the last of
    # them.
    return [
        text[start : min(end, after)] for (start, end), after in zip(spans, starts, strict=True)
    ] + [EOS_TOKEN]


def target_pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    """Returns what each token adds to the text; `"".join` of them is the whole text."""
    pieces: list[str] = []
    kept: list[int] = []
    shown = ""
    for place, index in enumerate(ids, start=1):
        if index not in (PAD_ID, BOS_ID):
            kept.append(index)
        text = tokenizer.decode(kept, skip_special_tokens=False)
        if place < len(ids):
            text = text.rstrip("\ufffd")  # an unfinished character: wait for its last byte
        pieces.append(text[len(shown) :])
        shown = text
    return pieces
