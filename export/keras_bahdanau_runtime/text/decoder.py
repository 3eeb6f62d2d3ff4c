"""Text out of ids, one id at a time."""

import codecs
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from keras_bahdanau_runtime.ids import BOS, EOS, PAD, SPECIAL, UNK


class TextDecoder:
    """Turns the ids of one text back into it, id by id.

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
