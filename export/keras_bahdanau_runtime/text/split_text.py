"""Tokenizers of text that another tool has split into pieces, separated by spaces."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from keras_bahdanau_runtime.checks import check_text
from keras_bahdanau_runtime.errors import argument_error, require
from keras_bahdanau_runtime.ids import EOS, SPECIAL, UNK
from keras_bahdanau_runtime.text.pieces import META_SPACE
from keras_bahdanau_runtime.text.tokenizer_schema import MAX_VOCABULARY_SIZE

CONTINUES = "@@"  # end of a piece of subword-nmt that continues in the next one
MARKS = (CONTINUES, META_SPACE, "")
_MAX_PIECE = 2**16  # characters; the library takes 100 bytes for each to spell a piece


class PieceJoiner:
    """Function that removes the marks of a tool from the texts of pieces, one piece at a time.

    Args:
        mark: `CONTINUES`, `META_SPACE`, or "" for pieces without marks.

    Example:

    >>> joiner = PieceJoiner("@@")
    >>> [joiner(piece) for piece in (" Fuß@@", " ball", " ist")]
    [' Fuß', 'ball', ' ist']
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._continues = False

    def __call__(self, text: str) -> str:
        """Return the text of a piece with a space in front if it starts a word."""
        if self._mark == META_SPACE:
            return text.removeprefix(" ").replace(META_SPACE, " ")
        if self._continues:
            text = text.removeprefix(" ")
        self._continues = bool(self._mark) and text.endswith(self._mark)
        return text.removesuffix(self._mark)


def piece_tokenizer(name: str, pieces: Sequence[str], strict: bool = True) -> Any:
    """Return a `tokenizers.Tokenizer` of pieces that are separated by spaces.

    Args:
        name: Name of the argument, for messages.
        pieces: The pieces in the order of their ids, which start at 4.
        strict: Whether each piece must be one of a text. Otherwise a piece may be empty or contain
            a space, and may occur twice: texts are then encoded with the last one. Ids of the
            others can only be decoded.

    Raises:
        ValueError: A piece is not a str, or occurs more than twice; or, if `strict`, is empty or
            contains a space, or occurs twice. Or pieces are longer, or there are more of them, than
            a file may have.
    """
    if len(pieces) > MAX_VOCABULARY_SIZE - len(SPECIAL):
        raise argument_error(
            name,
            f"have at most {MAX_VOCABULARY_SIZE - len(SPECIAL)} pieces",
            received=str(len(pieces)),
        )
    for index, piece in enumerate(pieces):
        check_text(f"{name}[{index}]", piece)
        if len(piece) > _MAX_PIECE:
            raise argument_error(
                f"{name}[{index}]",
                f"have at most {_MAX_PIECE} characters",
                received=str(len(piece)),
            )
        if strict and (not piece or " " in piece):
            raise argument_error(f"{name}[{index}]", "be a piece without spaces", piece)
    limit = 1 if strict else 2
    for piece, count in Counter(pieces).most_common(1):
        if count > limit:
            raise argument_error(
                name,
                f"contain each piece {'once' if strict else 'at most twice'}",
                received=f"{piece!r:.80} {count} times",
            )
    lib = require("tokenizers", extra="text")
    # With a space in front, no piece is spelled like a special one.
    byte_level = lib.pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    vocabulary = {piece: index for index, piece in SPECIAL.items()}
    last_ids = {piece: index for index, piece in enumerate(pieces, start=len(SPECIAL))}
    for index, piece in enumerate(pieces, start=len(SPECIAL)):
        # The space is no letter of a byte-level piece, so no text is encoded with a piece that has
        # one, and `byte_pieces` decodes it literally.
        spelled = f" {piece}"
        if piece and " " not in piece and last_ids[piece] == index:
            [(spelled, _)] = byte_level.pre_tokenize_str(piece)
        if spelled in vocabulary:
            raise argument_error(name, "contain a piece with spaces once", piece)
        vocabulary[spelled] = index
    tokenizer = lib.Tokenizer(lib.models.WordLevel(vocabulary, unk_token=SPECIAL[UNK]))
    tokenizer.pre_tokenizer = lib.pre_tokenizers.Sequence(
        [lib.pre_tokenizers.Split(" ", "removed"), byte_level]
    )
    replacements = {
        META_SPACE: [(" ", ""), (META_SPACE, " ")],
        CONTINUES: [(f"{CONTINUES} ", "")],
        "": [],
    }[mark_of(pieces)]
    tokenizer.decoder = lib.decoders.Sequence(
        [
            lib.decoders.ByteLevel(),
            *(lib.decoders.Replace(old, new) for old, new in replacements),
            lib.decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = lib.processors.TemplateProcessing(
        single=f"$A {SPECIAL[EOS]}", special_tokens=[(SPECIAL[EOS], EOS)]
    )
    return tokenizer


def mark_of(pieces: Sequence[str]) -> str:
    """Return the argument of `PieceJoiner` for pieces."""
    if any(piece.startswith(META_SPACE) for piece in pieces):
        return META_SPACE
    return CONTINUES if any(piece.endswith(CONTINUES) for piece in pieces) else ""
