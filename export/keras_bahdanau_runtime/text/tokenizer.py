"""Text on its way to ids and back: the tokenizer."""

import codecs
import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path

from keras_bahdanau_runtime.ids import BOS, EOS, PAD, UNK

FORMAT = "keras_bahdanau tokenizer"
VERSION = 1
SPECIAL = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
SMALLEST_VOCABULARY = len(SPECIAL) + 256  # every byte is a piece, so no text is ever unknown


class Tokenizer:
    """Byte-pair encoding that gives back every Unicode text exactly.

    Text becomes UTF-8 bytes and frequent byte sequences become pieces, so nothing is ever unknown
    and `decode(encode_target(text)) == text` for any text. Digits stand one by one. The ids 0 to 3
    are `<pad>`, `<unk>`, `<s>` and `</s>`; a text that spells one of them is encoded as the
    ordinary characters it consists of.

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

    def __init__(self, source, target=None):
        self._source = source
        self._target = source if target is None else target

    @classmethod
    def train(
        cls,
        sources: Iterable[str],
        targets: Iterable[str],
        vocabulary_size: int = 8000,
        joint: bool = True,
        min_frequency: int = 2,
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

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: If `vocabulary_size` is below 260, `min_frequency` below 1, or `sources` or
                `targets` holds anything but text or no text at all.
        """
        if vocabulary_size < SMALLEST_VOCABULARY:
            raise ValueError(
                f"`vocabulary_size` must be at least {SMALLEST_VOCABULARY} (4 special pieces and "
                f"256 bytes). Received: vocabulary_size={vocabulary_size}"
            )
        if min_frequency < 1:
            raise ValueError(
                f"`min_frequency` must be at least 1. Received: min_frequency={min_frequency}"
            )
        sources, targets = _sentences("sources", sources), _sentences("targets", targets)
        if joint:
            return cls(_learn(sources + targets, vocabulary_size, min_frequency))
        return cls(
            _learn(sources, vocabulary_size, min_frequency),
            _learn(targets, vocabulary_size, min_frequency),
        )

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """Reads a tokenizer that `save` wrote.

        Args:
            path: The JSON file.

        Returns:
            A `Tokenizer`.

        Raises:
            ValueError: If the file is no such JSON, or of a version this package does not know.
        """
        try:
            document = json.loads(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"The tokenizer file {path} is not valid JSON: {error}") from error
        found = document.get("format") if isinstance(document, dict) else None
        if found != FORMAT:
            raise ValueError(
                f'{path} is not a tokenizer file: expected "format": "{FORMAT}". '
                f"Received: {found!r}"
            )
        if document.get("version") != VERSION:
            raise ValueError(
                f"{path} is a tokenizer file of another version: expected {VERSION}. "
                f"Received: {document.get('version')!r}"
            )
        source, target = (_restore(path, document, side) for side in ("source", "target"))
        if source is None:
            raise ValueError(f'The tokenizer file {path} has no "source" vocabulary.')
        return cls(source, target)

    def save(self, path: str | os.PathLike) -> None:
        """Writes everything to one JSON file, which appears whole or not at all.

        `source` and `target` in it are what the `tokenizers` library reads by itself
        (`tokenizers.Tokenizer.from_str(json.dumps(document["source"]))`); `target` is `null` if
        `joint`.

        Args:
            path: The file to write. An existing one is replaced.
        """
        document = {
            "format": FORMAT,
            "version": VERSION,
            "source": json.loads(self._source.to_str()),
            "target": None if self.joint else json.loads(self._target.to_str()),
        }
        path = Path(path)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    @property
    def joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        return self._target is self._source

    @property
    def source_vocabulary_size(self) -> int:
        """Number of ids on the source side."""
        return self._source.get_vocab_size()

    @property
    def target_vocabulary_size(self) -> int:
        """Number of ids on the target side."""
        return self._target.get_vocab_size()

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

    def encode_target(self, text: str) -> list[int]:
        """Ids of a target text. As `encode_source`."""
        return _encode(self._target, text)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of target ids.

        Args:
            ids: Target ids. They are read up to the first `EOS`; `PAD` and `BOS` are passed over.

        Returns:
            The text. Bytes that form no character, which a model may write but no text encodes to,
            come out as U+FFFD.

        Raises:
            ValueError: If an id is outside the target vocabulary.
        """
        ids = self._read(ids)
        text = ids[:-1] if ids[-1:] == [EOS] else ids
        return self._target.decode(text, skip_special_tokens=False)

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
        return _pieces(self._source, self.encode_source(text))

    def target_tokens(self, ids: Iterable[int]) -> list[str]:
        """The readable piece behind each target id.

        Args:
            ids: Target ids, read as `decode` reads them.

        Returns:
            One string for each id that is read, `"</s>"` for the `EOS` if there is one.

        Raises:
            ValueError: If an id is outside the target vocabulary.
        """
        return _pieces(self._target, self._read(ids))

    def _read(self, ids):
        kept = []
        for index in map(int, ids):
            if not 0 <= index < self.target_vocabulary_size:
                raise ValueError(
                    f"`ids` must lie between 0 and {self.target_vocabulary_size - 1}, the last id "
                    f"of the target vocabulary. Received: {index}"
                )
            if index not in (PAD, BOS):
                kept.append(index)
            if index == EOS:
                break
        return kept


def _tokenizers():
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            '`Tokenizer` needs the `tokenizers` library: pip install "keras-bahdanau[text]"'
        ) from error
    return tokenizers


def _sentences(name, texts):
    if isinstance(texts, str):
        raise ValueError(f"`{name}` must be an iterable of str. Received one str: {texts!r:.80}")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"`{name}[{index}]` must be a str. Received: {text!r:.80}")
    if not any(texts):
        raise ValueError(f"`{name}` must hold at least one sentence that is not empty.")
    return texts


def _learn(texts, vocabulary_size, min_frequency):
    lib = _tokenizers()
    tokenizer = lib.Tokenizer(lib.models.BPE())
    # A space in front makes the first word the piece it is elsewhere; decoding takes it away.
    tokenizer.normalizer = lib.normalizers.Prepend(" ")
    # ByteLevel also splits at punctuation, so no learned piece can spell "<s>" and take its id.
    tokenizer.pre_tokenizer = lib.pre_tokenizers.Sequence(
        [
            lib.pre_tokenizers.Digits(individual_digits=True),
            lib.pre_tokenizers.ByteLevel(add_prefix_space=False),
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


def _restore(path, document, side):
    if document.get(side) is None:
        return None
    lib = _tokenizers()
    try:
        tokenizer = lib.Tokenizer.from_str(json.dumps(document[side]))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f'Cannot read "{side}" of the tokenizer file {path}: {error}') from error
    special = {index: tokenizer.id_to_token(index) for index in SPECIAL}
    if special != SPECIAL:
        raise ValueError(
            f'"{side}" of the tokenizer file {path} must begin with the ids '
            f"{SPECIAL}. Received: {special}"
        )
    return tokenizer


def _encode(tokenizer, text):
    try:
        return tokenizer.encode(text).ids
    except TypeError as error:
        raise ValueError(
            f"`text` must be a str without lone surrogates. Received: {text!r:.80}"
        ) from error


def _pieces(tokenizer, ids):
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    byte_of = _byte_of()
    pieces = []
    for position, index in enumerate(ids):
        token = tokenizer.id_to_token(index)
        if index in SPECIAL:
            # Bytes still waiting for the rest of their character belong to the piece before.
            if pieces:
                pieces[-1] += decoder.decode(b"", final=True)
            pieces.append(token)
            continue
        piece = decoder.decode(bytes(byte_of[letter] for letter in token))
        pieces.append(piece if position else piece.removeprefix(" "))
    if pieces:
        pieces[-1] += decoder.decode(b"", final=True)
    return pieces


@functools.cache
def _byte_of():
    """The byte behind each letter of byte-level pieces.

    Printable Latin-1 letters stand for themselves, the other bytes, in order, for the letters from
    U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }
