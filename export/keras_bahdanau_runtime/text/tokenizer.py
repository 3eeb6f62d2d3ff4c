"""Byte-pair tokenizer: text to ids, and ids back to text one id at a time."""

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


class TextDecoder:
    """Decoder of the ids of one text, id by id.

    A character spread over several ids comes with the last of them; bytes that form no character
    come out as U+FFFD. `PAD` and `BOS` add nothing. An id that has no piece, which a model with
    more ids than its tokenizer may write, is shown as `"<unk>"`.

    Args:
        pieces: The bytes behind each id; see `Tokenizer.target_decoder`.

    Example:

    >>> tokenizer = Tokenizer.train(["a"], ["a"], vocabulary_size=300)
    >>> decoder = tokenizer.target_decoder()
    >>> [decoder.add(index) for index in tokenizer.encode_target("é")], decoder.end()
    (['', '', 'é', '</s>'], '')
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._begun = False

    def add(self, index: int) -> str:
        """What `index` adds to the text."""
        if index in (PAD, BOS):
            return ""
        begun, self._begun = self._begun, True
        if not self._has_piece(index):
            return self.end() + SPECIAL[EOS if index == EOS else UNK]
        text = self._decode(self._pieces[index])
        return text if begun else text.removeprefix(" ")  # which encoding puts in front of a text

    def end(self) -> str:
        """What is left of a character that was begun."""
        return self._decode(b"", final=True)

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """What each of the ids adds to the text, as they come, where it is not nothing."""
        for index in ids:
            if added := self.add(index):
                yield added
        if rest := self.end():
            yield rest

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The readable piece behind each of the ids that end a text."""
        tokens: list[str] = []
        for index in ids:
            if tokens and not self._has_piece(index):
                tokens[-1] += self.end()  # a half character belongs to the piece that began it
            tokens.append(self.add(index))
        if tokens:
            tokens[-1] += self.end()
        return tokens

    def _has_piece(self, index: int) -> bool:
        return index not in SPECIAL and index < len(self._pieces)


def byte_pieces(vocabulary: Mapping[str, int]) -> list[bytes]:
    """The bytes behind each id of a byte-level vocabulary.

    Args:
        vocabulary: Ids by piece, as the `tokenizers` library spells them.

    Example:

    >>> byte_pieces({"<pad>": 0, "a": 1, "Ġb": 2})
    [b'<pad>', b'a', b' b']
    """
    byte_of = _byte_of()
    pieces = [b""] * (1 + max(vocabulary.values(), default=-1))
    for piece, index in vocabulary.items():
        try:
            pieces[index] = bytes([byte_of[letter] for letter in piece])
        except KeyError:  # a piece that is not of bytes stands for itself, as in the library
            pieces[index] = piece.encode("utf-8")
    return pieces


@functools.cache
def _byte_of() -> Mapping[str, int]:
    """The byte behind each letter of byte-level pieces.

    Printable Latin-1 letters stand for themselves, the other bytes, in order, for the letters from
    U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


FORMAT = "keras_bahdanau tokenizer"
VERSION = 1
SMALLEST_VOCABULARY = len(SPECIAL) + 256  # every byte is a piece, so no text is ever unknown
# What text is cut into, within which pieces are learned: words with the space before them, with
# joiners and marks such as the vowel signs of Devanagari, which ByteLevel's own pattern cuts off;
# runs of other characters; space. Its time grows no faster than the text.
_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}[\p{L}\p{M}\x{200C}\x{200D}]*| ?\p{N}+"
    r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
NORMALIZATIONS = ("nfc", "nfkc")
MOST_PIECES = 2**20  # the library makes room for as many as it is told, or aborts the process


class TokenizerVersionError(ValueError):
    """A tokenizer file is of a version that this package does not know."""


class Tokenizer:
    """Byte-pair encoding that gives back every Unicode text exactly.

    Text becomes UTF-8 bytes and frequent byte sequences become pieces, so nothing is ever unknown
    and `decode(encode_target(text)) == text` for any text. Digits stand one by one. The ids 0 to 3
    are `<pad>`, `<unk>`, `<s>` and `</s>`; a text that spells one of them is encoded as the
    ordinary characters it consists of. Two tokenizers are equal if their files would be.

    One character may have several spellings in Unicode: "é" is one code point (NFC) or "e" with an
    accent (NFD), which are other ids. A tokenizer with a `normalization` brings every text into one
    form first, and gives back that form.

    Most users call `Tokenizer.train` or `Tokenizer.load`.

    Args:
        source: `tokenizers.Tokenizer` of the source language.
        target: `tokenizers.Tokenizer` of the target language. `None` if both share one vocabulary.

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
        """Learns the pieces from text.

        Args:
            sources: Sentences of the source language.
            targets: Sentences of the target language.
            vocabulary_size: Largest number of ids, the 4 special pieces and the 256 bytes included.
                Little text yields fewer.
            joint: Whether one vocabulary is learned from both languages. Otherwise each gets its
                own, of `vocabulary_size` ids each.
            min_frequency: How often two pieces must stand side by side before they become one.
            normalization: The Unicode form that every text is brought into: "nfc", or "nfkc", which
                also replaces ligatures, wide letters and the like; `None` to leave texts as they
                are. The tokenizer's file holds it.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: If `vocabulary_size` is below 260 or above a million, `min_frequency` below
                1, `normalization` unknown, or `sources` or `targets` holds anything but text or no
                text at all.
        """
        check_range("vocabulary_size", vocabulary_size, int, SMALLEST_VOCABULARY, MOST_PIECES)
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
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads a tokenizer that `save` wrote.

        Args:
            path: The JSON file.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: If the file is no such JSON; a `TokenizerVersionError` if it is of a version
                that this package does not know.
        """
        return cls.parse(Path(path).read_bytes(), path)

    @classmethod
    def parse(cls, contents: bytes, path: str | os.PathLike[str] = "the tokenizer") -> "Tokenizer":
        """As `load`, of the bytes of such a file; `path` is its name in messages."""
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
        """Writes everything to one JSON file, which appears whole or not at all.

        `source` and `target` in it are what the `tokenizers` library reads by itself
        (`tokenizers.Tokenizer.from_str(json.dumps(document["source"]))`); `target` is `null` if
        `joint`.

        Args:
            path: The file to write. An existing one is replaced.
        """
        text = json.dumps(self._document(), ensure_ascii=False)
        with atomic_write(path) as writing:
            writing.write_text(text + "\n", encoding="utf-8")

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

    __hash__ = None  # type: ignore[assignment]  # by value it would take as long as `save`

    @property
    def joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        return self._target is self._source

    @property
    def normalization(self) -> str | None:
        """The Unicode form that source texts are brought into, "nfc" or "nfkc"; or `None`."""
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
        """The `tokenizers.Tokenizer` of the target language; the same one if `joint`."""
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
        """Ids of a source text.

        Args:
            text: Any text.

        Returns:
            The ids, the last of which is `EOS`.

        Raises:
            ValueError: If `text` is not a `str`, or one with lone surrogates, which stand for no
                character.
        """
        return _encode(self._source, text)

    def encode_sources(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of many source texts, encoded side by side on all cores; see `encode_source`."""
        return _encode_many(self._source, texts)

    def encode_target(self, text: str) -> list[int]:
        """Ids of a target text. As `encode_source`."""
        return _encode(self._target, text)

    def encode_targets(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of many target texts. As `encode_sources`."""
        return _encode_many(self._target, texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of target ids.

        Args:
            ids: Target ids. They are read up to the first `EOS`; `PAD` and `BOS` are passed over.

        Returns:
            The text. Bytes that form no character, which a model may write but no text encodes to,
            come out as U+FFFD.

        Raises:
            ValueError: If one is no int, or outside the target vocabulary.
        """
        ids = self._read(ids)
        words = ids[:-1] if ids[-1:] == [EOS] else ids
        return "".join(self.target_decoder().tokens(words))

    def source_tokens(self, text: str) -> list[str]:
        """The readable piece behind each id of a source text.

        Where several ids share one character, the last of them shows it and the others are empty.
        Without the final `"</s>"` the pieces join to the text.

        Args:
            text: Any text.

        Returns:
            As many strings as `encode_source(text)` has ids, the last one `"</s>"`.

        Example:

        >>> Tokenizer.train(["ab ab"], ["ab"], vocabulary_size=300).source_tokens("ab ab é")
        ['ab', ' ab', ' ', '', 'é', '</s>']
        """
        return self.source_decoder().tokens(self.encode_source(text))

    def target_tokens(self, ids: Iterable[int]) -> list[str]:
        """The readable piece behind each target id.

        Args:
            ids: Target ids, read as `decode` reads them.

        Returns:
            One string for each id that is read, `"</s>"` for the `EOS` if there is one.

        Raises:
            ValueError: If one is no int, or outside the target vocabulary.
        """
        return self.target_decoder().tokens(self._read(ids))

    def source_decoder(self) -> TextDecoder:
        """A `TextDecoder` for the ids of one source text."""
        return TextDecoder(self._source_pieces)

    def target_decoder(self) -> TextDecoder:
        """A `TextDecoder` for the ids of one target text."""
        return TextDecoder(self._target_pieces)

    def _read(self, ids: Iterable[int]) -> list[int]:
        kept: list[int] = []
        for given in ids:
            try:
                index = operator.index(given)
            except TypeError as error:
                raise ValueError(f"Argument `ids` must be ints. Received: {given!r:.80}") from error
            if not 0 <= index < self.target_vocabulary_size:
                raise ValueError(
                    f"Argument `ids` must hold ids in [0, {self.target_vocabulary_size}). "
                    f"Received: {index}"
                )
            if index not in (PAD, BOS):
                kept.append(index)
            if index == EOS:
                break
        return kept


def _encode(tokenizer: Any, text: str) -> list[int]:
    check_text("text", text)
    try:
        return list(tokenizer.encode(text).ids)
    except BaseException as error:
        _raise_panic(error)


def _encode_many(tokenizer: Any, texts: Iterable[str]) -> list[list[int]]:
    checked = checked_texts("texts", texts)
    try:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(checked)]
    except BaseException as error:
        _raise_panic(error)


def check_normalization(normalization: Any) -> None:
    """Raises a `ValueError` unless this is a Unicode form that is known, or `None`."""
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
    # A space in front makes the first word the piece it is elsewhere; decoding takes it away.
    tokenizer.normalizer = lib.normalizers.Prepend(" ")
    if normalization is not None:
        form = getattr(lib.normalizers, normalization.upper())()
        tokenizer.normalizer = lib.normalizers.Sequence([form, tokenizer.normalizer])
    # Words end at punctuation, so no learned piece can spell "<s>" and take its id.
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
    # The trainer also makes the special pieces strings to look for in text. Here they are ids only.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []
    return lib.Tokenizer.from_str(json.dumps(document))


def _restore(path: str | os.PathLike[str], side: str, document: Any) -> Any:
    lib = require("tokenizers", extra="text")
    if _holds_pattern(document):
        raise ValueError(
            f"{path}: expected {side!r} to split text by no pattern but our own, as one may take "
            "for ever. Received: another regular expression"
        )
    try:
        tokenizer = lib.Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library raises nothing narrower
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
        found = _encode(tokenizer, text)
        if found[-1:] != [EOS] or {PAD, BOS, EOS} & set(found[:-1]):
            raise ValueError(
                f"{path}: expected {side!r} to end a text with {EOS}, and to give it no other id "
                f"of padding, begin or end. Received: {found} for {text!r}"
            )
    return tokenizer


def _holds_pattern(document: Any) -> bool:
    """Whether a tokenizer's JSON holds a regular expression other than `_WORDS`."""
    if isinstance(document, dict):
        if isinstance(document.get("Regex"), str) and document["Regex"] != _WORDS:
            return True
        return any(_holds_pattern(part) for key, part in document.items() if key != "vocab")
    return isinstance(document, list) and any(map(_holds_pattern, document))


def _raise_panic(error: BaseException) -> NoReturn:
    """Raises again; a panic of the library's Rust, which is no `Exception`, as a `RunError`."""
    if type(error).__name__ != "PanicException":
        raise error
    message = " ".join(str(error).split())[:200]
    raise RunError(f"The tokenizers library could not do it: {message}") from error
