"""The bytes of each piece of a vocabulary, and how they are spelled in it."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from keras_bahdanau_runtime.ids import SPECIAL, UNK
from keras_bahdanau_runtime.text.columns import MARK

META_SPACE = "\u2581"  # the space in pieces of SentencePiece
WORD_END = "</w>"  # end of a word in merges of subword-nmt
SPELLINGS = ("byte-level", "metaspace", "words", "word-ends")
BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Spelling:
    """How the pieces of a vocabulary spell text.

    Args:
        kind: "byte-level" for a letter per byte, as `byte_pieces` reads them; "metaspace" for text
            with U+2581 instead of spaces, and pieces such as `<0x41>` for single bytes; "words" for
            words without the space before them; "word-ends" for words that end with `</w>`, as in
            merges of subword-nmt, which becomes a space.
        strips_space: Whether decoding removes a space at the start, which encoding adds.
        mark: "@@", U+2581 or "": how text that another tool had split before, such as subword-nmt,
            marks the parts of a word, so that decoding joins them; see `PieceJoiner`. `None` for
            text that was not split.
        charsmap: Rules that replace characters of a text before it is encoded; see `CharacterMap`.
            In base64; `None` for no rules.
        has_columns: Whether a source has several columns, whose symbols are pieces; see
            `Tokenizer.train`.
        replacements: For each of the last ids of the vocabulary, which only split text, the ids
            that encoded texts have instead; see `Tokenizer.from_toolkit`. A piece of the vocabulary
            that starts with a space is then one that no text is split into. `None` if all ids are
            those of the model.
    """

    kind: str = "byte-level"
    strips_space: bool = True
    mark: str | None = None
    charsmap: str | None = None
    has_columns: bool = False
    replacements: tuple[tuple[int, ...], ...] | None = None

    def pieces(self, vocabulary: Mapping[str, int]) -> list[bytes]:
        """Return the bytes of each id, without those that are replaced.

        Args:
            vocabulary: Ids by piece, in the spelling of the `tokenizers` library.

        Example:

        >>> Spelling("metaspace").pieces({"\u2581a": 4, "<0x41>": 5})[4:]
        [b' a', b'A']
        """
        if self.kind == "byte-level":
            pieces = byte_pieces(vocabulary)
        else:
            pieces = [b""] * (1 + max(vocabulary.values(), default=-1))
            for piece, index in vocabulary.items():
                pieces[index] = self._bytes(piece)
        for symbol, index in self.symbols(vocabulary).items():
            pieces[index] = symbol.encode("utf-8")
        for index, name in SPECIAL.items():
            if index < len(pieces):
                pieces[index] = name.encode("utf-8")
        return pieces[: len(pieces) - len(self.replacements or ())]

    def symbols(self, vocabulary: Mapping[str, int]) -> dict[str, int]:
        r"""Return the ids of the symbols in later columns of sources.

        Args:
            vocabulary: Ids by piece, in the spelling of the `tokenizers` library.

        Example:

        >>> Spelling(has_columns=True).symbols({"a": 4, "\t;PL": 5})
        {';PL': 5}
        """
        items = vocabulary.items() if self.has_columns else ()
        return {piece.removeprefix(MARK): index for piece, index in items if piece[:1] == MARK}

    @property
    def unknown(self) -> str:
        """Text of the id `UNK`."""
        if self.ends_words:
            return f"{SPECIAL[UNK]} "
        is_word = self.kind == "words" or self.mark is not None
        return f" {SPECIAL[UNK]}" if is_word else SPECIAL[UNK]

    @property
    def ends_words(self) -> bool:
        """Whether the last piece of a word ends with a space, which a text does not end with."""
        return self.kind == "word-ends"

    def _bytes(self, piece: str) -> bytes:
        if self.replacements is not None and piece.startswith(" "):
            piece = piece[1:]
        elif " " in piece:  # a control piece, which is part of no text
            return b""
        if self.ends_words:
            is_end = piece.endswith(WORD_END)
            return f"{piece.removesuffix(WORD_END)} ".encode() if is_end else piece.encode("utf-8")
        if self.kind == "words":
            return f" {piece}".encode()
        if match := BYTE_PIECE.fullmatch(piece):
            return bytes.fromhex(match[1])
        return piece.replace(META_SPACE, " ").encode("utf-8")


def byte_pieces(vocabulary: Mapping[str, int]) -> list[bytes]:
    """Return the bytes of each id of a byte-level vocabulary.

    Args:
        vocabulary: Ids by piece, in the spelling of the `tokenizers` library.

    Example:

    >>> byte_pieces({"<pad>": 0, "a": 1, "Ġb": 2})
    [b'<pad>', b'a', b' b']
    """
    pieces = [b""] * (1 + max(vocabulary.values(), default=-1))
    for piece, index in vocabulary.items():
        try:
            pieces[index] = spelled_bytes(piece)
        except KeyError:  # not a byte-level piece: the library uses it literally
            pieces[index] = piece.encode("utf-8")
    return pieces


def spelled_bytes(piece: str) -> bytes:
    """Return the bytes of a byte-level piece; raise a `KeyError` for one with other letters."""
    byte_by_letter = _byte_by_letter()
    return bytes([byte_by_letter[letter] for letter in piece])


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
