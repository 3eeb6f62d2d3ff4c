"""Byte-pair tokenizer: text to ids, and ids back to text one id at a time."""

import bisect
import codecs
import functools
import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from keras_bahdanau_runtime.checks import check_range, check_text, checked_texts
from keras_bahdanau_runtime.errors import RunError, require
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import BOS, EOS, PAD, SPECIAL, UNK
from keras_bahdanau_runtime.text.split_text import PieceJoiner, mark_of, piece_tokenizer

FORMAT = "keras_bahdanau tokenizer"
VERSION = 1
MIN_VOCABULARY_SIZE = len(SPECIAL) + 256  # every byte is a piece, so no text is unknown
# The library allocates memory for the requested size, and aborts the process if that fails.
MAX_VOCABULARY_SIZE = 2**20
NORMALIZATIONS = ("nfc", "nfkc")
# Text is first split into these parts, and pieces are learned within them: words with the space
# before them, with joiners and marks such as the vowel signs of Devanagari (ByteLevel's own pattern
# splits these off); runs of other characters; space. Matching takes linear time.
_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}[\p{L}\p{M}\x{200C}\x{200D}]*| ?\p{N}+"
    r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


class TokenizerVersionError(ValueError):
    """A tokenizer file has an unsupported version."""


class TextDecoder:
    """Decoder of the ids of one text, id by id.

    A character that consists of several ids is returned with the last of them. Bytes that form no
    character become U+FFFD. `PAD` and `BOS` add nothing. An id without a piece, which a model with
    more ids than its tokenizer may output, becomes `"<unk>"`.

    Args:
        pieces: The bytes of each id; see `Tokenizer.target_decoder`.
        mark: Argument of a `PieceJoiner` for pieces of another tool, or `None`.

    Example:

    >>> tokenizer = Tokenizer.train(["a"], ["a"], vocabulary_size=300)
    >>> decoder = tokenizer.target_decoder()
    >>> [decoder.add(index) for index in tokenizer.encode_target("é")], decoder.end()
    (['', '', 'é', '</s>'], '')
    """

    def __init__(self, pieces: Sequence[bytes], mark: str | None = None) -> None:
        self._pieces = pieces
        self._join = None if mark is None else PieceJoiner(mark)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._has_started = False

    def add(self, index: int) -> str:
        """Return the text that `index` adds."""
        if index in (PAD, BOS):
            return ""
        is_first, self._has_started = not self._has_started, True
        if index == EOS:
            return self.end() + SPECIAL[EOS]
        if self._has_piece(index):
            text = self._decode(self._pieces[index])
        else:  # unknown words have a space in front, as all words
            text = self.end() + ("" if self._join is None else " ") + SPECIAL[UNK]
        if self._join is not None:
            text = self._join(text)
        return text.removeprefix(" ") if is_first else text  # encoding adds a space in front

    def end(self) -> str:
        """Return the rest of an incomplete character."""
        return self._decode(b"", final=True)

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the texts that the ids add, without empty ones."""
        for index in ids:
            if added := self.add(index):
                yield added
        if rest := self.end():
            yield rest

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the readable piece of each of the last ids of a text."""
        tokens: list[str] = []
        for index in ids:
            if tokens and not self._has_piece(index):
                tokens[-1] += self.end()  # an incomplete character belongs to the piece before
            tokens.append(self.add(index))
        if tokens:
            tokens[-1] += self.end()
        return tokens

    def _has_piece(self, index: int) -> bool:
        return index not in SPECIAL and index < len(self._pieces)


def byte_pieces(vocabulary: Mapping[str, int]) -> list[bytes]:
    """Return the bytes of each id of a byte-level vocabulary.

    Args:
        vocabulary: Ids by piece, in the spelling of the `tokenizers` library.

    Example:

    >>> byte_pieces({"<pad>": 0, "a": 1, "Ġb": 2})
    [b'<pad>', b'a', b' b']
    """
    byte_by_letter = _byte_by_letter()
    pieces = [b""] * (1 + max(vocabulary.values(), default=-1))
    for piece, index in vocabulary.items():
        try:
            pieces[index] = bytes([byte_by_letter[letter] for letter in piece])
        except KeyError:  # not a byte-level piece: the library uses it literally
            pieces[index] = piece.encode("utf-8")
    return pieces


@functools.cache
def _byte_by_letter() -> Mapping[str, int]:
    """Return the byte for each letter of byte-level pieces.

    Printable Latin-1 letters represent themselves. The letters from U+0100 on represent the other
    bytes in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


class Tokenizer:
    """Byte-pair encoding that reproduces every Unicode text exactly.

    Text is converted to UTF-8 bytes, and frequent byte sequences become pieces. So no text is
    unknown, and `decode(encode_target(text)) == text` for any text. Each digit is a piece of its
    own. The ids 0 to 3 are `<pad>`, `<unk>`, `<s>` and `</s>`; a text that contains one of these
    strings is encoded as ordinary characters. Two tokenizers are equal if their files are equal.

    Unicode has several spellings of some characters: "é" is one code point (NFC) or "e" and an
    accent (NFD), which have different ids. A tokenizer with a `normalization` first converts every
    text to one form, so decoding returns that form.

    Most users call `Tokenizer.train` or `Tokenizer.load`. `Tokenizer.from_pieces` makes a tokenizer
    of text that another tool has split already. Other pieces are unknown to it.

    Args:
        source: `tokenizers.Tokenizer` of the source language.
        target: `tokenizers.Tokenizer` of the target language; `None` if both share a vocabulary.

    Example:

    >>> tokenizer = Tokenizer.train(["a man on a bike"], ["ein Mann"], vocabulary_size=300)
    >>> tokenizer.encode_source("a man")[-1]
    3
    >>> tokenizer.decode(tokenizer.encode_target("ein  Mann, 😀"))
    'ein  Mann, 😀'
    """

    def __init__(self, source: Any, target: Any = None) -> None:
        self._source = source
        self._target = source if target is None else target
        self._source_mark, self._target_mark = map(mark_of, (source, self._target))
        self._source_pieces = byte_pieces(source.get_vocab())
        self._target_pieces = (
            self._source_pieces if target is None else byte_pieces(target.get_vocab())
        )

    @classmethod
    def train(
        cls,
        sources: Iterable[str],
        targets: Iterable[str],
        vocabulary_size: int = 8000,
        joint: bool = True,
        min_frequency: int = 2,
        normalization: str | None = None,
    ) -> "Tokenizer":
        """Learn the pieces from text.

        Args:
            sources: Sentences of the source language.
            targets: Sentences of the target language.
            vocabulary_size: Largest number of ids, including 4 special pieces and 256 bytes. A
                small text gives fewer.
            joint: Whether both languages share one vocabulary. Otherwise each language has its own
                of `vocabulary_size` ids.
            min_frequency: Number of times that two pieces must be adjacent to be merged.
            normalization: Unicode form that every text is converted to: "nfc"; or "nfkc", which
                also replaces ligatures, wide letters and similar characters; `None` to leave texts
                unchanged. It is saved in the tokenizer's file.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: `vocabulary_size` is below 260 or above 2**20, `min_frequency` is below 1,
                `normalization` is unknown, or `sources` or `targets` contain an item that is not
                text, or no text.
        """
        check_range(
            "vocabulary_size", vocabulary_size, int, MIN_VOCABULARY_SIZE, MAX_VOCABULARY_SIZE
        )
        check_range("min_frequency", min_frequency, int, 1)
        check_normalization(normalization)
        sources, targets = checked_texts("sources", sources), checked_texts("targets", targets)
        for name, texts in (("sources", sources), ("targets", targets)):
            if not any(texts):
                raise ValueError(f"Argument `{name}` must hold a sentence. Received: {texts!r:.80}")
        settings = vocabulary_size, min_frequency, normalization
        if joint:
            return cls(_learn(sources + targets, *settings))
        return cls(_learn(sources, *settings), _learn(targets, *settings))

    @classmethod
    def from_pieces(
        cls, sources: Sequence[str], targets: Sequence[str] | None = None
    ) -> "Tokenizer":
        """Return a tokenizer of text that is split already, into pieces separated by spaces.

        The marks of two tools are removed when ids are decoded: with a piece that ends with "@@"
        (subword-nmt), such a piece is joined with the next one; with a piece that starts with "▁"
        (SentencePiece), all pieces are joined and each "▁" becomes a space.

        Args:
            sources: Pieces of the source language in the order of their ids, which start at 4.
            targets: Pieces of the target language; `None` if both languages share their pieces.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: A piece is not a str, is empty or contains a space, or occurs twice.

        Example:

        >>> tokenizer = Tokenizer.from_pieces(["Fuß@@", "ball", "ist"])
        >>> ids = tokenizer.encode_target("Fuß@@ ball ist toll")
        >>> ids, tokenizer.decode(ids)
        ([4, 5, 6, 1, 3], 'Fußball ist <unk>')
        """
        source = piece_tokenizer("sources", sources)
        return cls(source, None if targets is None else piece_tokenizer("targets", targets))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Load a tokenizer that `save` wrote.

        Args:
            path: The JSON file.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: The file is not the JSON of a tokenizer; a `TokenizerVersionError` for an
                unsupported version.
        """
        return cls.parse(Path(path).read_bytes(), path)

    @classmethod
    def parse(cls, contents: bytes, path: str | os.PathLike[str] = "the tokenizer") -> "Tokenizer":
        """Load a tokenizer from the bytes of its file; `path` is the name in messages."""
        try:
            document = json.loads(contents.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: expected JSON in UTF-8. Received: {error}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(
                f"{path}: expected an object with 'format': {FORMAT!r}. Received: {document!r:.80}"
            )
        if document.get("version") != VERSION:
            raise TokenizerVersionError(
                f"{path}: expected version {VERSION}. Received: {document.get('version')!r}"
            )
        target = document.get("target")
        return cls(
            _restore(path, "source", document.get("source")),
            None if target is None else _restore(path, "target", target),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer to one JSON file, atomically.

        The `tokenizers` library can read the values of `source` and `target`
        (`tokenizers.Tokenizer.from_str(json.dumps(document["source"]))`). `target` is `null` if
        `joint`.

        Args:
            path: The file to create or replace.
        """
        text = json.dumps(self._document(), ensure_ascii=False)
        with atomic_write(path) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    def _document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "source": json.loads(self._source.to_str()),
            "target": None if self.joint else json.loads(self._target.to_str()),
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokenizer):
            return NotImplemented
        return self is other or self._document() == other._document()

    __hash__ = None  # type: ignore[assignment]  # a hash by value would take as long as `save`

    @property
    def joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        return self._target is self._source

    @property
    def normalization(self) -> str | None:
        """Unicode form that source texts are converted to, "nfc" or "nfkc"; or `None`."""
        normalizer = json.loads(self._source.to_str())["normalizer"] or {}
        parts = normalizer.get("normalizers", [normalizer])
        kinds = [str(part.get("type")).lower() for part in parts]
        return next((kind for kind in kinds if kind in NORMALIZATIONS), None)

    @property
    def source(self) -> Any:
        """The `tokenizers.Tokenizer` of the source language."""
        return self._source

    @property
    def target(self) -> Any:
        """The `tokenizers.Tokenizer` of the target language; that of the source if `joint`."""
        return self._target

    @property
    def source_vocabulary_size(self) -> int:
        """Number of ids on the source side."""
        return int(self._source.get_vocab_size())

    @property
    def target_vocabulary_size(self) -> int:
        """Number of ids on the target side."""
        return int(self._target.get_vocab_size())

    def encode_source(self, text: str) -> list[int]:
        """Encode a source text.

        Args:
            text: Any text.

        Returns:
            The ids, the last of which is `EOS`.

        Raises:
            ValueError: `text` is not a `str`, or contains lone surrogates.
        """
        return _encode(self._source, text)

    def encode_sources(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode source texts in parallel on all cores; see `encode_source`."""
        return _encode_many(self._source, texts)

    def encode_target(self, text: str) -> list[int]:
        """Encode a target text; see `encode_source`."""
        return _encode(self._target, text)

    def encode_targets(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode target texts; see `encode_sources`."""
        return _encode_many(self._target, texts)

    def target_piece(self, index: int) -> bytes:
        """Return the bytes of a target id; the spelling of a special piece such as `"</s>"`."""
        return self._target_pieces[index]

    def target_ids_starting_with(self, start: bytes) -> list[int]:
        """Return the target ids whose bytes start with `start`, without special ids.

        Example:

        >>> tokenizer = Tokenizer.train(["a"], ["ab ab"], vocabulary_size=300)
        >>> [tokenizer.target_piece(i) for i in tokenizer.target_ids_starting_with(b" a")]
        [b' a', b' ab']
        """
        pieces = self._sorted_target_pieces
        low = bisect.bisect_left(pieces, (start, 0))
        high = bisect.bisect_left(pieces, (start + b"\xff" * 64, 0))
        matches = (pieces[i] for i in range(low, high))
        return [index for piece, index in matches if piece.startswith(start)]

    @functools.cached_property
    def longest_target_piece(self) -> int:
        """Number of bytes of the longest target piece that is not special."""
        return max(len(piece) for piece, _ in self._sorted_target_pieces)

    @functools.cached_property
    def _sorted_target_pieces(self) -> list[tuple[bytes, int]]:
        return sorted((p, i) for i, p in enumerate(self._target_pieces) if i not in SPECIAL)

    def decode(self, ids: Iterable[int]) -> str:
        """Decode target ids to text.

        Args:
            ids: Target ids. They are read up to the first `EOS`, without `PAD` and `BOS`.

        Returns:
            The text. Bytes that form no character become U+FFFD; a model may output them, but no
            text is encoded to them.

        Raises:
            ValueError: An id is not an int, or is outside the target vocabulary.
        """
        ids = self._until_end(ids)
        words = ids[:-1] if ids[-1:] == [EOS] else ids
        return "".join(self.target_decoder().tokens(words))

    def source_tokens(self, text: str) -> list[str]:
        """Return the readable piece of each id of a source text.

        If several ids form one character, the last of them shows it and the others are empty. The
        pieces without the final `"</s>"` join to the text.

        Args:
            text: Any text.

        Returns:
            A string for each id of `encode_source(text)`; the last one is `"</s>"`.

        Example:

        >>> Tokenizer.train(["ab ab"], ["ab"], vocabulary_size=300).source_tokens("ab ab é")
        ['ab', ' ab', ' ', '', 'é', '</s>']
        """
        return self.source_decoder().tokens(self.encode_source(text))

    def target_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the readable piece of each target id.

        Args:
            ids: Target ids, read like those of `decode`.

        Returns:
            A string for each id that is read, `"</s>"` for `EOS`.

        Raises:
            ValueError: An id is not an int, or is outside the target vocabulary.
        """
        return self.target_decoder().tokens(self._until_end(ids))

    def source_decoder(self) -> TextDecoder:
        """Return a `TextDecoder` for the ids of one source text."""
        return TextDecoder(self._source_pieces, self._source_mark)

    def target_decoder(self) -> TextDecoder:
        """Return a `TextDecoder` for the ids of one target text."""
        return TextDecoder(self._target_pieces, self._target_mark)

    def _until_end(self, ids: Iterable[int]) -> list[int]:
        """Check ids up to the first `EOS`, and return them without `PAD` and `BOS`."""
        checked: list[int] = []
        for value in ids:
            try:
                index = operator.index(value)
            except TypeError as error:
                raise ValueError(f"Argument `ids` must be ints. Received: {value!r:.80}") from error
            if not 0 <= index < self.target_vocabulary_size:
                raise ValueError(
                    f"Argument `ids` must hold ids in [0, {self.target_vocabulary_size}). "
                    f"Received: {index}"
                )
            if index not in (PAD, BOS):
                checked.append(index)
            if index == EOS:
                break
        return checked


def _encode(tokenizer: Any, text: str) -> list[int]:
    check_text("text", text)
    try:
        return list(tokenizer.encode(text).ids)
    except BaseException as error:
        _raise_panic(error)


def _encode_many(tokenizer: Any, texts: Iterable[str]) -> list[list[int]]:
    texts = checked_texts("texts", texts)
    try:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    except BaseException as error:
        _raise_panic(error)


def check_normalization(normalization: Any) -> None:
    """Raise a `ValueError` unless this is a supported Unicode form or `None`."""
    if normalization is not None and normalization not in NORMALIZATIONS:
        raise ValueError(
            f"Argument `normalization` must be one of {NORMALIZATIONS}, or None. "
            f"Received: {normalization!r}"
        )


def _learn(
    texts: list[str], vocabulary_size: int, min_frequency: int, normalization: str | None
) -> Any:
    lib = require("tokenizers", extra="text")
    tokenizer = lib.Tokenizer(lib.models.BPE())
    # With a space in front, the first word has the same pieces as elsewhere. Decoding removes it.
    tokenizer.normalizer = lib.normalizers.Prepend(" ")
    if normalization is not None:
        form = getattr(lib.normalizers, normalization.upper())()
        tokenizer.normalizer = lib.normalizers.Sequence([form, tokenizer.normalizer])
    # Words end at punctuation, so no learned piece can be "<s>" and have its id.
    tokenizer.pre_tokenizer = lib.pre_tokenizers.Sequence(
        [
            lib.pre_tokenizers.Digits(individual_digits=True),
            lib.pre_tokenizers.Split(lib.Regex(_WORDS), "isolated"),
            lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = lib.decoders.Sequence(
        [lib.decoders.ByteLevel(), lib.decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = lib.processors.TemplateProcessing(
        single=f"$A {SPECIAL[EOS]}", special_tokens=[(SPECIAL[EOS], EOS)]
    )
    trainer = lib.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        special_tokens=[SPECIAL[index] for index in sorted(SPECIAL)],
        initial_alphabet=lib.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer also makes the special pieces strings that are matched in text; remove that.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []
    return lib.Tokenizer.from_str(json.dumps(document))


def _restore(path: str | os.PathLike[str], side: str, document: Any) -> Any:
    lib = require("tokenizers", extra="text")
    if _has_other_pattern(document):
        raise ValueError(
            f"{path}: expected {side!r} to split text only by the pattern of this package, because "
            "another one may never end. Received: another regular expression"
        )
    try:
        tokenizer = lib.Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library raises no narrower class
        raise ValueError(
            f"{path}: expected {side!r} to be the JSON of a tokenizer. Received: {error}"
        ) from error
    except BaseException as error:
        _raise_panic(error)
    special = {index: tokenizer.id_to_token(index) for index in SPECIAL}
    if special != SPECIAL:
        raise ValueError(
            f"{path}: expected {side!r} to begin with the ids {SPECIAL}. Received: {special}"
        )
    ids = sorted(tokenizer.get_vocab().values())
    if ids != list(range(len(ids))):
        raise ValueError(
            f"{path}: expected {side!r} to have the ids from 0 to {len(ids) - 1}. "
            f"Received: gaps, or up to {ids[-1]}"
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for text in ("", "a b", SPECIAL[EOS]):
        ids = _encode(tokenizer, text)
        if ids[-1:] != [EOS] or {PAD, BOS, EOS} & set(ids[:-1]):
            raise ValueError(
                f"{path}: expected {side!r} to end a text with {EOS}, without another id of "
                f"padding, begin or end. Received: {ids} for {text!r}"
            )
    return tokenizer


def _has_other_pattern(document: Any) -> bool:
    """Return whether a tokenizer's JSON has a regular expression other than `_WORDS`."""
    if isinstance(document, dict):
        if isinstance(document.get("Regex"), str) and document["Regex"] != _WORDS:
            return True
        return any(_has_other_pattern(part) for key, part in document.items() if key != "vocab")
    return isinstance(document, list) and any(map(_has_other_pattern, document))


def _raise_panic(error: BaseException) -> NoReturn:
    """Raise the error again; a Rust panic, which is not an `Exception`, as a `RunError`."""
    if type(error).__name__ != "PanicException":
        raise error
    message = " ".join(str(error).split())[:200]
    raise RunError(f"The tokenizers library failed: {message}") from error
