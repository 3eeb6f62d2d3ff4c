"""Tokenizer: text to ids, and ids back to text one id at a time."""

import bisect
import codecs
import copy
import functools
import itertools
import json
import operator
import os
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from keras_bahdanau_runtime.checks import check_range, check_text, checked_texts
from keras_bahdanau_runtime.errors import ArgumentError, argument_error, require
from keras_bahdanau_runtime.files import atomic_write
from keras_bahdanau_runtime.ids import BOS, EOS, PAD, SPECIAL, UNK
from keras_bahdanau_runtime.text.columns import MARK, SymbolEncoder, first_column, frequent_symbols
from keras_bahdanau_runtime.text.copied_words import (
    MAX_COPIED_WORDS,
    NumberedWords,
    encode_numbered,
)
from keras_bahdanau_runtime.text.pieces import SPELLINGS, Spelling
from keras_bahdanau_runtime.text.split_text import MARKS, PieceJoiner, mark_of, piece_tokenizer
from keras_bahdanau_runtime.text.tokenizer_import import (
    MAX_PIECE,
    hugging_face_document,
    sentencepiece_document,
)
from keras_bahdanau_runtime.text.tokenizer_schema import (
    CHARACTERS,
    MAX_FILE_BYTES,
    MAX_VOCABULARY_SIZE,
    SYMBOLS,
    WORDS,
    InvalidTokenizer,
    check_growth,
    check_tokenizer,
    open_tokenizer,
    parse_charsmap,
    path_error,
    raise_panic,
)
from keras_bahdanau_runtime.text.toolkit_pieces import is_converted, toolkit_document

FORMAT = "keras_bahdanau tokenizer"
# Version 2 also has the spelling of the pieces, version 3 rules that replace characters, version 4
# sources of several columns, version 5 copied words, and version 6 replacements of ids. A tokenizer
# is written as the first version that has what it needs, which earlier versions of this package can
# read.
VERSIONS = (1, 2, 3, 4, 5, 6)
# Fields of a spelling, by the first version that has them, if it is not version 2.
_SPELLING_FIELDS = {"charsmap": 3, "has_columns": 4, "replacements": 6}
KINDS = ("bpe", "words", "characters", "symbols", "bytes")
MIN_VOCABULARY_SIZE = len(SPECIAL) + 256  # every byte is a piece, so no text is unknown
NORMALIZATIONS = ("nfc", "nfkc", "nfd")


class TokenizerVersionError(ValueError):
    """A tokenizer file has an unsupported version."""


class TextDecoder:
    """Decoder of the ids of one text, id by id.

    A character that consists of several ids is returned with the last of them. Bytes that form no
    character become U+FFFD. `PAD` and `BOS` add nothing. An id without a piece, which a model with
    more ids than its tokenizer may output, becomes `"<unk>"`.

    Args:
        pieces: The bytes of each id; see `Tokenizer.target_decoder`.
        spelling: `Spelling` of the pieces. It states whether a space at the start is removed, and
            the mark of another tool, which is removed, too.
        words: The copied words, whose ids follow those of the pieces.

    Example:

    >>> tokenizer = Tokenizer.train(["a"], ["a"], vocabulary_size=300)
    >>> decoder = tokenizer.target_decoder()
    >>> [decoder.add(index) for index in tokenizer.encode_target("é")], decoder.end()
    (['', '', 'é', '</s>'], '')
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        spelling: Spelling = Spelling(),  # noqa: B008 - immutable
        words: Sequence[str] = (),
    ) -> None:
        self._pieces, self._spelling, self._words = pieces, spelling, words
        self._join = None if spelling.mark is None else PieceJoiner(spelling.mark)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._has_started = False
        self._space = ""  # after the last word, in front of the next one

    def add(self, index: int) -> str:
        """Return the text that `index` adds."""
        if index in (PAD, BOS):
            return ""
        is_first, self._has_started = not self._has_started, True
        if self._has_piece(index):
            text = self._decode(self._pieces[index])
        else:
            text = self.end() + self._name(index)
        if self._join is not None and index != EOS:
            text = self._join(text)
        if self._spelling.ends_words and index != EOS:
            text, self._space = self._space + text, ""
            if text.endswith(" "):
                text, self._space = text[:-1], " "
        return text.removeprefix(" ") if is_first and self._spelling.strips_space else text

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

    def _name(self, index: int) -> str:
        """Return the text of an id without a piece."""
        number = index - len(self._pieces)
        if 0 <= number < len(self._words):
            return f" {self._words[number]}"
        return SPECIAL[EOS] if index == EOS else self._spelling.unknown


class _PieceIndex:
    """Ids of pieces by their first bytes, sorted when they are first needed.

    Args:
        pieces: The bytes of each id, special ones included.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def starting_with(self, start: bytes) -> list[int]:
        """Return the ids of pieces that start with `start`, without special ids."""
        low = bisect.bisect_left(self._sorted, (start, 0))
        high = bisect.bisect_left(self._sorted, (start + b"\xff" * 64, 0))
        matches = (self._sorted[i] for i in range(low, high))
        return [index for piece, index in matches if piece.startswith(start)]

    @functools.cached_property
    def longest(self) -> int:
        """Number of bytes of the longest piece that is not special."""
        return max((len(piece) for piece, _ in self._sorted), default=0)

    @functools.cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((p, i) for i, p in enumerate(self._pieces) if i not in SPECIAL)


class _Encoder:
    """Encoder of the texts of one language.

    Args:
        tokenizer: `tokenizers.Tokenizer`.
        spelling: `Spelling` of its pieces.

    Attributes:
        character_map: `CharacterMap` of the spelling, or `None`.
    """

    def __init__(self, tokenizer: Any, spelling: Spelling) -> None:
        self._tokenizer = tokenizer
        self.character_map = None
        if spelling.charsmap is not None:
            self.character_map = parse_charsmap(spelling.charsmap)
        self._replacements = spelling.replacements or ()
        self._first = tokenizer.get_vocab_size() - len(self._replacements)  # id that is replaced

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        check_text("text", text)
        if self.character_map is not None:
            text = self.character_map(text)
        try:
            return self._replaced(self._tokenizer.encode(text).ids)
        except BaseException as error:
            raise_panic(error)

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of each text, encoded in parallel."""
        texts = checked_texts("texts", texts)
        if self.character_map is not None:
            texts = [*map(self.character_map, texts)]
        try:
            encodings = self._tokenizer.encode_batch_fast(texts)
        except BaseException as error:
            raise_panic(error)
        return [self._replaced(encoding.ids) for encoding in encodings]

    def _replaced(self, ids: list[int]) -> list[int]:
        if not self._replacements or max(ids) < self._first:
            return ids
        return [
            replaced
            for index in ids
            for replaced in (
                self._replacements[index - self._first] if index >= self._first else (index,)
            )
        ]


class Tokenizer:
    r"""Conversion of text to ids and back.

    By default it is a byte-pair encoding that reproduces every Unicode text exactly. Text is
    converted to UTF-8 bytes, and frequent byte sequences become pieces. So no text is unknown, and
    `decode(encode_target(text)) == text` for any text. Each digit is a separate piece.

    The ids 0 to 3 are `<pad>`, `<unk>`, `<s>` and `</s>`; a text that contains one of these strings
    is encoded as ordinary characters. Two tokenizers are equal if their files are equal.

    Unicode has several spellings of some characters: "é" is one code point (NFC) or "e" and an
    accent (NFD), which have different ids. A tokenizer with a `normalization` first converts every
    text to one form, so decoding returns that form.

    A source may have several columns, such as a word and its tags: "talo\tN;PL". With
    `has_columns`, the text before the first tab is split as usual. Each tab, semicolon and space
    from there on begins a symbol, "\tN" and ";PL", which is one piece. Its id differs from those of
    all other pieces, so the tag "N" is no letter "N". Unknown symbols are `<unk>`.

    Most users call `Tokenizer.train` or `Tokenizer.load`. `Tokenizer.from_pieces` makes a tokenizer
    of text that another tool has split already. Other pieces are unknown to it.

    With `copied_words`, a model that copies can also copy words that no vocabulary has. Both sides
    have that many more ids after those of the pieces. In each source, the words without a target
    piece are numbered in the order of their first occurrence, and these ids represent them: in the
    source the unknown ones, in the target all of them.

    Args:
        source: `tokenizers.Tokenizer` of the source language.
        target: `tokenizers.Tokenizer` of the target language; `None` if both share a vocabulary.
        source_spelling: `Spelling` of the source pieces.
        target_spelling: `Spelling` of the target pieces; not used if both share a vocabulary.
        copied_words: Number of additional ids, for sides whose pieces are words or symbols.

    Raises:
        ValueError: `copied_words` is out of range, or above 0 for other pieces.

    Example:

    >>> tokenizer = Tokenizer.train(["a man on a bike"], ["ein Mann"], vocabulary_size=300)
    >>> tokenizer.encode_source("a man")[-1]
    3
    >>> tokenizer.decode(tokenizer.encode_target("ein  Mann, 😀"))
    'ein  Mann, 😀'
    >>> tokenizer = Tokenizer.train(["talo\tN;PL"], ["talot"], has_columns=True, min_frequency=1)
    >>> tokenizer.source_tokens("talo\tN;SG;PL")
    ['talo', '\tN', '<unk>', ';PL', '</s>']
    >>> tokenizer = Tokenizer.from_pieces(["sleeps"], ["schläft"], copied_words=2)
    >>> tokenizer.encode_source("Rex sleeps"), tokenizer.encode_target("Rex schläft", "Rex sleeps")
    ([5, 4, 3], [5, 4, 3])
    >>> tokenizer.decode([5, 4, 3], source="Ada sleeps")
    'Ada schläft'
    """

    _words: Sequence[str] = ()  # numbered words of the source of `for_source`

    def __init__(
        self,
        source: Any,
        target: Any = None,
        source_spelling: Spelling = Spelling(),  # noqa: B008 - immutable
        target_spelling: Spelling = Spelling(),  # noqa: B008
        copied_words: int = 0,
    ) -> None:
        self._source = source
        self._target = source if target is None else target
        if target is None:
            target_spelling = replace(source_spelling, has_columns=False)
        self._spellings = source_spelling, target_spelling
        self._source_encoder = self._target_encoder = _Encoder(source, source_spelling)
        if target is not None:
            self._target_encoder = _Encoder(target, target_spelling)
        self._source_pieces = source_spelling.pieces(source.get_vocab())
        self._target_pieces = (
            self._source_pieces if target is None else target_spelling.pieces(target.get_vocab())
        )
        self._piece_index = _PieceIndex(self._target_pieces)
        self._symbols: SymbolEncoder | None = None
        if source_spelling.has_columns:
            symbols = source_spelling.symbols(source.get_vocab())
            self._symbols = SymbolEncoder(symbols, self.normalization)
        check_range("copied_words", copied_words, int, 0, MAX_COPIED_WORDS)
        if copied_words and not self._has_words:
            raise argument_error(
                "copied_words",
                "be 0 unless the pieces of both sides are words, symbols or those of `from_pieces`",
                copied_words,
            )
        self._copied_words = copied_words
        self._numbered: NumberedWords | None = None
        if copied_words:
            copied_ids = self.copied_ids()
            self._numbered = NumberedWords(source, self._target, copied_ids, copied_words)

    @classmethod
    def train(
        cls,
        sources: Iterable[str],
        targets: Iterable[str],
        vocabulary_size: int = 8000,
        joint: bool = True,
        min_frequency: int = 2,
        normalization: str | None = None,
        kind: str | tuple[str, str] = "bpe",
        has_columns: bool = False,
        copied_words: int = 0,
    ) -> "Tokenizer":
        """Learn the pieces from text.

        Args:
            sources: Sentences of the source language.
            targets: Sentences of the target language.
            vocabulary_size: Largest number of ids, including 4 special pieces and 256 bytes. A
                small text gives fewer.
            joint: Whether both languages share one vocabulary. Otherwise each language has its own
                of `vocabulary_size` ids.
            min_frequency: Number of times that two pieces must be adjacent to be merged, or that a
                word or character must occur.
            normalization: Unicode form that every text is converted to: "nfc"; "nfkc", which also
                replaces ligatures, wide letters and similar characters; or "nfd" for sources, which
                splits Hangul syllables into letters and letters from their accents, with "nfc" for
                targets. `None` leaves texts unchanged. It is saved in the tokenizer's file.
            kind: "bpe" for byte pairs. "words" for the most frequent words, with runs of
                punctuation and single digits as words of their own, "characters" for the most
                frequent characters, and "symbols" for the most frequent parts between spaces, such
                as phonemes; other ones are `<unk>`. "bytes" for the 256 bytes alone. A pair has
                the kind of the sources and that of the targets.
            has_columns: Whether a source has several columns, joined by tabs. The kind is that of
                the first column. The symbols of the others have at most `vocabulary_size` ids in
                addition to these.
            copied_words: Largest number of different words of a source that can be copied although
                they have no target piece, at most 1024. Each is an id in addition to the others.
                For the kinds "words" and "symbols" only; texts of other kinds are spelled with
                pieces that every text has.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: `vocabulary_size` is below 260 or above 2**20, `min_frequency` is below 1,
                `normalization` or `kind` is unknown, a `joint` vocabulary has two kinds or
                "nfd", `copied_words` is out of range or above 0 for another kind, or `sources` or
                `targets` contain an item that is not text, or no text.
        """
        check_range(
            "vocabulary_size", vocabulary_size, int, MIN_VOCABULARY_SIZE, MAX_VOCABULARY_SIZE
        )
        check_range("min_frequency", min_frequency, int, 1)
        check_normalization(normalization)
        kinds = kind if isinstance(kind, tuple) and len(kind) == 2 else (kind, kind)
        for side_kind in kinds:
            check_kind(side_kind)
        if joint and kinds[0] != kinds[1]:
            raise argument_error("joint", "be False for sides of two kinds", received="True")
        if joint and normalization == "nfd":
            raise argument_error("joint", "be False for nfd, the form of sources", received="True")
        sources, targets = checked_texts("sources", sources), checked_texts("targets", targets)
        for name, texts in (("sources", sources), ("targets", targets)):
            if not any(texts):
                raise argument_error(name, "hold a sentence", texts)
        settings = vocabulary_size, min_frequency
        spellings = [_spelling_of(side_kind) for side_kind in kinds]
        symbols: list[str] = []
        if has_columns:
            symbols = frequent_symbols(sources, normalization, *settings)
            sources = [first_column(text) for text in sources]
            spellings[0] = replace(spellings[0], has_columns=True)
        if joint:
            side = _learn(sources + targets, kinds[0], normalization, *settings, symbols)
            return cls(side, None, spellings[0], copied_words=copied_words)
        forms = (normalization, "nfc" if normalization == "nfd" else normalization)
        source = _learn(sources, kinds[0], forms[0], *settings, symbols)
        target = _learn(targets, kinds[1], forms[1], *settings)
        return cls(source, target, spellings[0], spellings[1], copied_words)

    @classmethod
    def from_pieces(
        cls,
        sources: Sequence[str],
        targets: Sequence[str] | None = None,
        copied_words: int = 0,
    ) -> "Tokenizer":
        """Return a tokenizer of text that is split already, into pieces separated by spaces.

        The marks of two tools are removed when ids are decoded: with a piece that ends with "@@"
        (subword-nmt), such a piece is joined with the next one; with a piece that starts with "▁"
        (SentencePiece), all pieces are joined and each "▁" becomes a space.

        Args:
            sources: Pieces of the source language in the order of their ids, which start at 4.
            targets: Pieces of the target language; `None` if both languages share their pieces.
            copied_words: As for `train`.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: A piece is not a str, is empty or contains a space, or occurs twice; or
                `copied_words` is out of range.

        Example:

        >>> tokenizer = Tokenizer.from_pieces(["Fuß@@", "ball", "ist"])
        >>> ids = tokenizer.encode_target("Fuß@@ ball ist toll")
        >>> ids, tokenizer.decode(ids)
        ([4, 5, 6, 1, 3], 'Fußball ist <unk>')
        """
        source, spelling = piece_tokenizer("sources", sources), Spelling(mark=mark_of(sources))
        if targets is None:
            return cls(source, None, spelling, copied_words=copied_words)
        target = piece_tokenizer("targets", targets)
        return cls(source, target, spelling, Spelling(mark=mark_of(targets)), copied_words)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Load a tokenizer that `save` wrote, or one of SentencePiece or Hugging Face.

        Tokenizers of these libraries give the same pieces as there. The ids 0 to 3 are the special
        ones, and those of the other pieces follow in their original order.

        Args:
            path: The JSON file; the `tokenizer.json` of a Hugging Face tokenizer with a BPE,
                Unigram or WordLevel model; or the `.model` file of SentencePiece, of type unigram
                or BPE.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: The file is not that of a tokenizer, or of an unsupported kind; a
                `TokenizerVersionError` for an unsupported version.
        """
        with open(path, "rb") as file:
            contents = file.read(MAX_FILE_BYTES + 1)
        if Path(path).suffix.lower() == ".model":
            document, spelling = sentencepiece_document(contents, path)
        else:
            document = _parse_json(contents, path)
            if not isinstance(document, dict) or "format" in document or "model" not in document:
                return cls.parse(contents, path)
            document, spelling = hugging_face_document(document, path)
        return cls._restored(path, (document, None), (spelling, Spelling()))

    @classmethod
    def from_toolkit(
        cls,
        path: str | os.PathLike[str],
        pieces: Sequence[str],
        splits_missing: bool = False,
    ) -> "Tokenizer":
        """Return a tokenizer of raw text for the vocabulary of a model of another toolkit.

        Text is split by the file of a tool. The ids are those of the vocabulary, which may have
        another order, lack pieces of the tool, or have others. Those that no text is split into can
        only be decoded.

        Args:
            path: The `.model` file of SentencePiece, of type unigram or BPE; or codes of
                subword-nmt, version 0.2.
            pieces: Pieces of the vocabulary in the order of their ids, which start at 4; those of
                subword-nmt with "@@", such as "Fuß@@". If a piece occurs twice, texts are encoded
                with the last one.
            splits_missing: Whether a piece that the vocabulary lacks is split into pieces that it
                has, as by JoeyNMT. Otherwise it is `<unk>`, as in OpenNMT-py and fairseq.

        Returns:
            A `Tokenizer` whose sides share the vocabulary; see `combine`.

        Raises:
            ValueError: The file is not one of these, or a piece is not Unicode text.

        Example:

        ```python
        source = Tokenizer.from_toolkit("spm.model", ["▁a", "▁man", "▁on"])
        source.encode_source("a man")  # [4, 5, 3]
        ```
        """
        for index, piece in enumerate(pieces):
            check_text(f"pieces[{index}]", piece)
        with open(path, "rb") as file:
            contents = file.read(MAX_FILE_BYTES + 1)
        document, spelling = toolkit_document(contents, path, pieces, splits_missing)
        return cls._restored(path, (document, None), (spelling, Spelling()))

    @classmethod
    def combine(
        cls, source: "Tokenizer", target: "Tokenizer", copied_words: int = 0
    ) -> "Tokenizer":
        """Return a tokenizer with the source side of one tokenizer and the target side of another.

        Args:
            source: A `Tokenizer`.
            target: A `Tokenizer`.
            copied_words: As for `train`; those of the two tokenizers do not count.

        Raises:
            ValueError: `copied_words` is out of range, or above 0 for pieces of another kind.

        Example:

        >>> english, german = (Tokenizer.train([word], [word], 300) for word in ("dog", "Hund"))
        >>> Tokenizer.combine(english, german).joint
        False
        """
        spellings = source._spellings[0], target._spellings[1]
        return cls(source.source, target.target, *spellings, copied_words)

    @classmethod
    def parse(cls, contents: bytes, path: str | os.PathLike[str] = "the tokenizer") -> "Tokenizer":
        """Load a tokenizer from the bytes of its file; `path` is the name in messages."""
        document = _parse_json(contents, path)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(
                f"{path}: expected an object with 'format': {FORMAT!r}. "
                f"Received: {reprlib.repr(document)}"
            )
        if document.get("version") not in VERSIONS:
            raise TokenizerVersionError(
                f"{path}: expected version {' or '.join(map(str, VERSIONS))}. "
                f"Received: {reprlib.repr(document.get('version'))}"
            )
        spellings = [Spelling(), Spelling()]
        if document["version"] > 1:
            items = document.get("spellings")
            if not isinstance(items, list) or len(items) != 2:
                raise ValueError(f"{path}: expected two spellings. Received: {reprlib.repr(items)}")
            spellings = [_parse_spelling(item, path) for item in items]
            if spellings[1].has_columns:
                raise ValueError(
                    f"{path}: expected a spelling of targets without columns. "
                    f"Received: {reprlib.repr(items[1])}"
                )
        copied_words: Any = 0
        if document["version"] == 5:
            copied_words = document.get("copied_words")
            if type(copied_words) is not int or not 0 < copied_words <= MAX_COPIED_WORDS:
                raise ValueError(
                    f"{path}: expected copied_words from 1 to {MAX_COPIED_WORDS}. "
                    f"Received: {reprlib.repr(copied_words)}"
                )
        documents = document.get("source"), document.get("target")
        return cls._restored(path, documents, (spellings[0], spellings[1]), copied_words)

    @classmethod
    def _restored(
        cls,
        path: str | os.PathLike[str],
        documents: tuple[Any, Any],
        spellings: tuple[Spelling, Spelling],
        copied_words: int = 0,
    ) -> "Tokenizer":
        """Return the tokenizer of the JSON of each language; `None` for a shared one."""
        source, target = documents
        sides = [_restore(path, "source", source)]
        if target is not None:
            sides.append(_restore(path, "target", target))
        for side, spelling in zip(sides, spellings, strict=False):
            _check_replacements(path, side, spelling)
        try:
            tokenizer = cls(
                sides[0], sides[1] if target is not None else None, *spellings, copied_words
            )
            for document, character_map in (
                (source, tokenizer._source_encoder.character_map),
                (target, tokenizer._target_encoder.character_map),
            ):
                if document is not None and character_map is not None:
                    check_growth(document, character_map.growth)
        except InvalidTokenizer as error:
            raise path_error(path, "rules that SentencePiece writes", error) from error
        except ArgumentError as error:
            raise ValueError(
                f"{path}: expected words or symbols on both sides for copied_words. "
                f"Received: {copied_words}"
            ) from error
        return tokenizer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tokenizer to one JSON file, atomically.

        The `tokenizers` library can read the values of `source` and `target`
        (`tokenizers.Tokenizer.from_str(json.dumps(document["source"]))`). `target` is `null` if
        `joint`. Texts of a tokenizer whose spelling has a `charsmap` must be normalized before, ids
        that have `replacements` replaced after it, and of a source with `has_columns` the library
        encodes only the first column.

        Args:
            path: The file to create or replace.

        Raises:
            ValueError: The file would be larger than those that `load` reads.
        """
        text = json.dumps(self._document(), ensure_ascii=False)
        contents = f"{text}\n".encode()
        if len(contents) > MAX_FILE_BYTES:
            raise ValueError(
                f"A file of a tokenizer must have at most {MAX_FILE_BYTES} bytes. Use fewer or "
                f"shorter pieces. Received: {len(contents)} bytes for {str(path)!r}"
            )
        with atomic_write(path) as temporary:
            temporary.write_bytes(contents)

    def _document(self) -> dict[str, Any]:
        document = {
            "format": FORMAT,
            "version": 1,
            "source": json.loads(self._source.to_str()),
            "target": None if self.joint else json.loads(self._target.to_str()),
        }
        sides = self._source, self._target
        is_converted = any(side.id_to_token(EOS) != SPECIAL[EOS] for side in sides)
        is_plain = self._spellings == (Spelling(), Spelling()) and not self._copied_words
        if is_converted or not is_plain:
            document["version"] = 2
            document["spellings"] = [asdict(spelling) for spelling in self._spellings]
        for name, version in _SPELLING_FIELDS.items():
            if any(getattr(spelling, name) not in (None, False) for spelling in self._spellings):
                document["version"] = version
        if self._copied_words:
            document |= {"version": 5, "copied_words": self._copied_words}
        for name, version in _SPELLING_FIELDS.items():
            if document["version"] < version:
                for spelling in document.get("spellings", []):
                    del spelling[name]
        return document

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
    def spellings(self) -> tuple[Spelling, Spelling]:
        """The `Spelling`s of source and target pieces."""
        return self._spellings

    @property
    def has_columns(self) -> bool:
        """Whether a source has several columns, whose symbols are pieces."""
        return self._symbols is not None

    @property
    def runs_in_browser(self) -> bool:
        """Whether a site can run it: its sides are of `train`, SentencePiece or subword-nmt.

        Those of Hugging Face, and text that is split already, need steps that a site has not.
        """
        forms = [
            _form(_untrained(normalization, kind))
            for kind in KINDS
            for normalization in (None, *NORMALIZATIONS)
        ]
        return all(
            is_converted(json.loads(side.to_str()))
            if spelling.kind in ("metaspace", "word-ends")
            else _form(side) in forms and spelling.kind == "byte-level" and not spelling.mark
            for side, spelling in zip((self._source, self._target), self._spellings, strict=True)
        )

    @property
    def kinds(self) -> tuple[str, str]:
        """Kinds of the source and target pieces; "other" for those of another library.

        Example:

        >>> Tokenizer.train(["a"], ["b"], kind=("characters", "bytes"), joint=False).kinds
        ('characters', 'bytes')
        """
        source, target = (
            _kind_of(side, spelling)
            for side, spelling in zip((self._source, self._target), self._spellings, strict=True)
        )
        return source, target

    @property
    def normalization(self) -> str | None:
        """Unicode form that source texts are converted to, "nfc", "nfkc" or "nfd"; or `None`."""
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
    def copied_words(self) -> int:
        """Number of ids of copied words, which are the last ones of both sides."""
        return self._copied_words

    @property
    def source_vocabulary_size(self) -> int:
        """Number of ids on the source side, with those of copied words."""
        return len(self._source_pieces) + self._copied_words

    @property
    def target_vocabulary_size(self) -> int:
        """Number of ids on the target side, with those of copied words."""
        return len(self._target_pieces) + self._copied_words

    @property
    def _has_words(self) -> bool:
        """Whether a text of each side is split into the words that `NumberedWords` expects."""
        sides = zip((self._source, self._target), self._spellings, strict=True)
        return all(_kind_of(*side) in ("words", "symbols") or _is_split(*side) for side in sides)

    def numbered_words(self, source: str) -> list[str]:
        """Return the words of a source that ids of copied words represent, in their order.

        Example:

        >>> tokenizer = Tokenizer.from_pieces(["Ada", "."], ["."], copied_words=2)
        >>> tokenizer.numbered_words("Rex . Ada . Rex . Max .")
        ['Rex', 'Ada']
        """
        if self._numbered is None:
            return []
        return self._numbered.of_text(source if self._symbols is None else first_column(source))

    def for_source(self, source: str) -> "Tokenizer":
        """Return a tokenizer of the targets of one source, which has its numbered words.

        It is this tokenizer if there are no `copied_words`.
        """
        if self._numbered is None:
            return self
        check_text("source", source)
        tokenizer = copy.copy(self)
        tokenizer._words = self.numbered_words(source)
        return tokenizer

    def encode_source(self, text: str) -> list[int]:
        """Encode a source text.

        Args:
            text: Any text.

        Returns:
            The ids, the last of which is `EOS`.

        Raises:
            ValueError: `text` is not a `str`, or contains lone surrogates.
        """
        first, symbols = text, list[int]()
        if self._symbols is not None:
            check_text("text", text)
            first, symbols = self._symbols.split(text)
        ids = self._source_encoder.encode(first)
        if self._numbered is not None:
            ids = self._numbered.encode(first, ids)
        return [*ids[:-1], *symbols, EOS] if symbols else ids

    def encode_sources(self, texts: Iterable[str]) -> list[list[int]]:
        """Encode source texts in parallel on all cores; see `encode_source`."""
        columns: list[tuple[str, list[int]]] = []
        if self._symbols is not None:
            columns = [*map(self._symbols.split, checked_texts("texts", texts))]
            texts = [first for first, _ in columns]
        elif self._numbered is not None:
            texts = checked_texts("texts", texts)  # which may be an iterator, and are read twice
        encoded = self._source_encoder.encode_many(texts)
        if self._numbered is not None:
            encoded = [*map(self._numbered.encode, texts, encoded)]
        if self._symbols is None:
            return encoded
        return [
            [*ids[:-1], *symbols, EOS] for ids, (_, symbols) in zip(encoded, columns, strict=True)
        ]

    def copied_ids(self) -> list[int]:
        r"""Return the target id with the same piece as each source id, `PAD` where there is none.

        Special pieces, and the symbols of a source with columns, have none. With `copied_words`,
        other pieces without one, and the ids of copied words, have `UNK`: they are copied as
        numbered words.

        Example:

        >>> tokenizer = Tokenizer.from_pieces(["Rex", "sleeps"], ["schläft", "Rex"])
        >>> tokenizer.copied_ids()
        [0, 0, 0, 0, 5, 0]
        >>> Tokenizer.combine(tokenizer, tokenizer, copied_words=2).copied_ids()
        [0, 0, 0, 0, 5, 1, 1, 1]
        """
        missing = UNK if self._copied_words else PAD
        symbols = self._spellings[0].symbols(self._source.get_vocab()).values()
        excluded = {*SPECIAL, *(symbols if self.joint else ())}
        targets = {
            piece: index for index, piece in enumerate(self._target_pieces) if index not in excluded
        }
        ids = [targets.get(piece, missing) for piece in self._source_pieces]
        for index in (*SPECIAL, *symbols):
            ids[index] = PAD
        return ids + [UNK] * self._copied_words

    def unknown_symbols(self, text: str) -> list[str]:
        r"""Return the unknown symbols in the later columns of a source text.

        Example:

        >>> tokenizer = Tokenizer.train(["a\tN;PL"] * 2, ["a"], has_columns=True)
        >>> tokenizer.unknown_symbols("b\tN;SG")
        [';SG']
        """
        return [] if self._symbols is None else self._symbols.unknown(text)

    def encode_target(self, text: str, source: str | None = None) -> list[int]:
        """Encode a target text; see `encode_source`.

        Args:
            text: Any text.
            source: Its source text, whose numbered words have ids in it; `None` for a text whose
                unknown words are all `UNK`. It matters only with `copied_words`.
        """
        if source is not None:
            return self.for_source(source).encode_target(text)
        ids = self._target_encoder.encode(text)
        return self._encode_numbered(text, ids, self._words)

    def encode_targets(
        self, texts: Iterable[str], sources: Iterable[str] | None = None
    ) -> list[list[int]]:
        """Encode target texts; see `encode_sources`.

        Args:
            texts: Texts.
            sources: As many source texts, as for `encode_target`; `None` for none.

        Raises:
            ValueError: As `encode_target`, or there are not as many sources.
        """
        if self._numbered is None or sources is None:
            return self._target_encoder.encode_many(texts)
        texts, sources = checked_texts("texts", texts), checked_texts("sources", sources)
        encoded = self._target_encoder.encode_many(texts)
        if len(sources) != len(texts):
            raise argument_error(
                "sources", f"have one text for each of {len(texts)}", received=str(len(sources))
            )
        return [
            self._encode_numbered(text, ids, self.numbered_words(source)) if UNK in ids else ids
            for text, ids, source in zip(texts, encoded, sources, strict=True)
        ]

    def _encode_numbered(self, text: str, ids: list[int], words: Sequence[str]) -> list[int]:
        return encode_numbered(self._target, text, ids, words, len(self._target_pieces))

    def join_target(self, text: str) -> str:
        """Return a target text without the marks of its pieces, as `decode` returns it.

        A text without a mark is not split, and is returned as it is.

        Example:

        >>> Tokenizer.from_pieces(["Fuß@@", "ball"]).join_target("Fuß@@ ball ist toll")
        'Fußball ist toll'
        """
        mark = self.target_mark
        if not mark or mark not in text:
            return text
        joiner = PieceJoiner(mark)
        return "".join(joiner(f" {piece}") for piece in text.split()).removeprefix(" ")

    @property
    def target_mark(self) -> str:
        """Mark of pieces in target texts that are split already; empty if they have none."""
        return self._spellings[1].mark or ""

    @property
    def target_unit(self) -> str:
        """Unit in which errors of target texts are counted: "symbols" or "characters".

        Example:

        >>> Tokenizer.train(["read"], ["R EH1 D"], kind=("characters", "symbols"),
        ...                 joint=False).target_unit
        'symbols'
        """
        return "symbols" if self._spellings[1].mark == "" else "characters"

    def target_piece(self, index: int) -> bytes:
        """Return the bytes of a target id; the spelling of a special piece such as `"</s>"`."""
        number = index - len(self._target_pieces)
        if number < 0:
            return self._target_pieces[index]
        return self._word_pieces[number] if number < len(self._words) else SPECIAL[UNK].encode()

    def target_ids_starting_with(self, start: bytes) -> list[int]:
        """Return the target ids whose bytes start with `start`, without special ids.

        Example:

        >>> tokenizer = Tokenizer.train(["a"], ["ab ab"], vocabulary_size=300)
        >>> [tokenizer.target_piece(i) for i in tokenizer.target_ids_starting_with(b" a")]
        [b' a', b' ab']
        """
        words = zip(self._word_pieces, itertools.count(len(self._target_pieces)), strict=False)
        matches = [index for piece, index in words if piece.startswith(start)]
        return self._piece_index.starting_with(start) + matches

    @property
    def longest_target_piece(self) -> int:
        """Number of bytes of the longest target piece that is not special."""
        return max(self._piece_index.longest, *map(len, self._word_pieces), 0)

    @property
    def _word_pieces(self) -> list[bytes]:
        return [f" {word}".encode() for word in self._words]

    def decode(self, ids: Iterable[int], source: str | None = None) -> str:
        """Decode target ids to text.

        Args:
            ids: Target ids. They are read up to the first `EOS`, without `PAD` and `BOS`.
            source: The source text, for the ids of its numbered words; `None` for none.

        Returns:
            The text. Bytes that form no character become U+FFFD; a model may output them, but no
            text is encoded to them.

        Raises:
            ValueError: An id is not an int, or is outside the target vocabulary.
        """
        ids = self._until_end(ids)
        words = ids[:-1] if ids[-1:] == [EOS] else ids
        return "".join(self.target_decoder(source).tokens(words))

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
        return self.for_source(text).source_decoder().tokens(self.encode_source(text))

    def target_tokens(self, ids: Iterable[int], source: str | None = None) -> list[str]:
        """Return the readable piece of each target id.

        Args:
            ids: Target ids, read like those of `decode`.
            source: As for `decode`.

        Returns:
            A string for each id that is read, `"</s>"` for `EOS`.

        Raises:
            ValueError: An id is not an int, or is outside the target vocabulary.
        """
        return self.target_decoder(source).tokens(self._until_end(ids))

    def source_decoder(self) -> TextDecoder:
        """Return a `TextDecoder` for the ids of one source text."""
        return TextDecoder(self._source_pieces, self._spellings[0], self._words)

    def target_decoder(self, source: str | None = None) -> TextDecoder:
        """Return a `TextDecoder` for the ids of one target text.

        Args:
            source: As for `decode`.
        """
        words = self._words if source is None else self.for_source(source)._words
        return TextDecoder(self._target_pieces, self._spellings[1], words)

    def _until_end(self, ids: Iterable[int]) -> list[int]:
        """Check ids up to the first `EOS`, and return them without `PAD` and `BOS`."""
        checked: list[int] = []
        for value in ids:
            try:
                index = operator.index(value)
            except TypeError as error:
                raise argument_error("ids", "be ints", value) from error
            if not 0 <= index < self.target_vocabulary_size:
                raise argument_error(
                    "ids", f"hold ids in [0, {self.target_vocabulary_size})", received=str(index)
                )
            if index not in (PAD, BOS):
                checked.append(index)
            if index == EOS:
                break
        return checked


def check_normalization(normalization: Any) -> None:
    """Raise a `ValueError` unless this is a supported Unicode form or `None`."""
    if normalization is not None and normalization not in NORMALIZATIONS:
        raise argument_error("normalization", f"be one of {NORMALIZATIONS}, or None", normalization)


def check_kind(kind: Any) -> None:
    """Raise a `ValueError` unless this is a kind of pieces that can be learned."""
    if kind not in KINDS:
        raise argument_error("kind", f"be one of {KINDS}", kind)


def _parse_json(contents: bytes, path: str | os.PathLike[str]) -> Any:
    if len(contents) > MAX_FILE_BYTES:
        raise ValueError(
            f"{path}: expected a tokenizer of at most {MAX_FILE_BYTES} bytes. "
            f"Received: {len(contents)} or more"
        )
    try:
        return json.loads(contents.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON in UTF-8. Received: {error}") from error


def _parse_spelling(item: Any, path: str | os.PathLike[str]) -> Spelling:
    try:
        spelling = Spelling(**item)
    except TypeError as error:
        raise ValueError(f"{path}: expected a spelling. Received: {reprlib.repr(item)}") from error
    is_known = spelling.kind in SPELLINGS and spelling.mark in (None, *MARKS)
    if not is_known or not isinstance(spelling.strips_space, bool):
        raise ValueError(
            f"{path}: expected a spelling of {SPELLINGS} and a mark of {MARKS}. "
            f"Received: {reprlib.repr(item)}"
        )
    if spelling.charsmap is not None and spelling.kind != "metaspace":
        raise ValueError(
            f"{path}: expected a charsmap only in a spelling 'metaspace'. "
            f"Received: {spelling.kind!r}"
        )
    if spelling.replacements is not None and spelling.kind not in ("metaspace", "word-ends"):
        raise ValueError(
            f"{path}: expected replacements only in a spelling 'metaspace' or 'word-ends'. "
            f"Received: {spelling.kind!r}"
        )
    if not isinstance(spelling.has_columns, bool) or (
        spelling.has_columns and spelling.kind != "byte-level"
    ):
        raise ValueError(
            f"{path}: expected has_columns true or false, and true only in a spelling "
            f"'byte-level'. Received: {reprlib.repr(item)}"
        )
    return replace(spelling, replacements=_parse_replacements(spelling.replacements, path))


def _parse_replacements(
    items: Any, path: str | os.PathLike[str]
) -> tuple[tuple[int, ...], ...] | None:
    if items is None:
        return None
    is_nested = isinstance(items, list) and all(isinstance(item, list) for item in items)
    if not is_nested or not all(type(index) is int for item in items for index in item):
        raise ValueError(
            f"{path}: expected replacements that are lists of ids. Received: {reprlib.repr(items)}"
        )
    return tuple(map(tuple, items))


def _spelling_of(kind: str) -> Spelling:
    """Return the spelling of a kind of pieces that is learned."""
    # Words and symbols have the space before them, but a character does not. An unknown symbol is
    # also decoded with a space, so that it does not change the symbol before it.
    return Spelling(strips_space=kind != "characters", mark="" if kind == "symbols" else None)


def _kind_of(side: Any, spelling: Spelling) -> str:
    """Return the kind of the pieces of one side, or "other"."""
    form = _form(side)
    for kind in KINDS:
        forms = [
            _form(_untrained(normalization, kind)) for normalization in (None, *NORMALIZATIONS)
        ]
        if form in forms and replace(spelling, has_columns=False) == _spelling_of(kind):
            vocabulary = side.get_vocab()
            size = len(vocabulary) - len(spelling.symbols(vocabulary))
            return "bytes" if kind == "bpe" and size <= MIN_VOCABULARY_SIZE else kind
    return "other"


def _is_split(side: Any, spelling: Spelling) -> bool:
    """Return whether the pieces of one side are those of `Tokenizer.from_pieces`."""
    plain = Spelling(mark=spelling.mark, has_columns=spelling.has_columns)
    has_spelling = spelling.mark is not None and spelling == plain
    return has_spelling and _form(side) == _form(piece_tokenizer("pieces", []))


def _learn(
    texts: list[str],
    kind: str,
    normalization: str | None,
    vocabulary_size: int,
    min_frequency: int,
    symbols: Sequence[str] = (),
) -> Any:
    lib = require("tokenizers", extra="text")
    tokenizer = _untrained(normalization, kind)
    settings = {
        "vocab_size": MIN_VOCABULARY_SIZE if kind == "bytes" else vocabulary_size,
        "min_frequency": min_frequency,
        "special_tokens": [SPECIAL[index] for index in sorted(SPECIAL)],
        "show_progress": False,
    }
    if kind in ("bpe", "bytes"):
        alphabet = lib.pre_tokenizers.ByteLevel.alphabet()
        trainer = lib.trainers.BpeTrainer(initial_alphabet=alphabet, **settings)
    else:
        trainer = lib.trainers.WordLevelTrainer(**settings)
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer also makes the special pieces strings that are matched in text; remove that.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []
    vocabulary = document["model"]["vocab"]
    for symbol in symbols[: MAX_VOCABULARY_SIZE - len(vocabulary)]:
        vocabulary[f"{MARK}{symbol}"] = len(vocabulary)
    return lib.Tokenizer.from_str(json.dumps(document))


def _untrained(normalization: str | None, kind: str) -> Any:
    """Return a `tokenizers.Tokenizer` without a vocabulary."""
    lib = require("tokenizers", extra="text")
    has_merges = kind in ("bpe", "bytes")
    tokenizer = lib.Tokenizer(
        lib.models.BPE() if has_merges else lib.models.WordLevel({}, SPECIAL[UNK])
    )
    steps = [] if normalization is None else [getattr(lib.normalizers, normalization.upper())()]
    if kind != "characters":
        # With a space in front, the first word has the same pieces as elsewhere. Decoding removes
        # it.
        steps.append(lib.normalizers.Prepend(" "))
    if steps:
        tokenizer.normalizer = steps[0] if len(steps) == 1 else lib.normalizers.Sequence(steps)
    split = lib.pre_tokenizers.Split
    parts = [
        # Words end at punctuation, so no learned piece can be "<s>" and have its id.
        lib.pre_tokenizers.Digits(individual_digits=True),
        split(lib.Regex(WORDS), "isolated"),
    ]
    if kind in ("characters", "symbols"):
        pattern = CHARACTERS if kind == "characters" else SYMBOLS
        parts = [split(lib.Regex(pattern), "isolated")]
    byte_level = lib.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = lib.pre_tokenizers.Sequence([*parts, byte_level])
    decoders = [lib.decoders.ByteLevel(), lib.decoders.Strip(" ", 1, 0)]
    if kind == "characters":
        decoders.pop()
    tokenizer.decoder = lib.decoders.Sequence(decoders)
    tokenizer.post_processor = lib.processors.TemplateProcessing(
        single=f"$A {SPECIAL[EOS]}", special_tokens=[(SPECIAL[EOS], EOS)]
    )
    return tokenizer


def _form(tokenizer: Any) -> dict[str, Any]:
    """Return everything that determines the ids of a text, except the vocabulary."""
    document = json.loads(tokenizer.to_str())
    model = {key: document["model"][key] for key in document["model"].keys() - {"vocab", "merges"}}
    steps = "normalizer", "pre_tokenizer", "post_processor", "added_tokens"
    return {"model": model, **{step: document[step] for step in steps}}


def _restore(path: str | os.PathLike[str], side: str, document: Any) -> Any:
    """Return the checked `tokenizers.Tokenizer` of one language."""
    try:
        check_tokenizer(document)
        tokenizer = open_tokenizer({**document, "truncation": None, "padding": None})
    except InvalidTokenizer as error:
        expected = f"{side!r} to be the JSON of a tokenizer that this package writes"
        raise path_error(path, expected, error) from error
    encoder = _Encoder(tokenizer, Spelling())
    for text in ("", "a b", SPECIAL[EOS]):
        ids = encoder.encode(text)
        if ids[-1:] != [EOS] or {PAD, BOS, EOS} & set(ids[:-1]):
            raise ValueError(
                f"{path}: expected {side!r} to end a text with {EOS}, without another id of "
                f"padding, begin or end. Received: {ids} for {text!r}"
            )
    return tokenizer


def _check_replacements(path: str | os.PathLike[str], side: Any, spelling: Spelling) -> None:
    """Raise a `ValueError` unless replacements are for the last ids, and have other ones."""
    replacements = spelling.replacements or ()
    first = side.get_vocab_size() - len(replacements)
    ids = {index for item in replacements for index in item}
    is_inside = first >= len(SPECIAL) and all(index == UNK or EOS < index < first for index in ids)
    if not is_inside or not all(0 < len(item) <= MAX_PIECE for item in replacements):
        raise ValueError(
            f"{path}: expected replacements of the last ids by 1 to {MAX_PIECE} ids each, which "
            f"are {UNK} or from {EOS + 1} to {first - 1}. Received: {reprlib.repr(replacements)}"
        )
