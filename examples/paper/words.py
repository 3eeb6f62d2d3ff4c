"""A vocabulary of whole words, as the paper's: the most frequent ones, and `<unk>` for the rest."""

from collections import Counter

from tokenizers import Tokenizer as Words
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from keras_bahdanau import Tokenizer
from keras_bahdanau_runtime.ids import EOS, SPECIAL, UNK

# Spells a word in the letters of byte-level pieces, which is what `Tokenizer` reads.
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def word_tokenizer(sources, targets, vocabulary_size):
    """A `Tokenizer` whose pieces are words: of each language the most frequent.

    Args:
        sources: Source texts, words with one space between them.
        targets: Target texts, likewise.
        vocabulary_size: Most ids of each language, the four special ones included.

    Returns:
        A `keras_bahdanau.Tokenizer`.

    Raises:
        ValueError: If no word is left beside the special ids, so that all would be unknown.

    Example:

    >>> word_tokenizer(["a man"], ["un homme"], 6).encode_source("a dog")
    [4, 1, 3]
    """
    return Tokenizer(
        _side("sources", sources, vocabulary_size), _side("targets", targets, vocabulary_size)
    )


def _side(name, texts, vocabulary_size):
    if vocabulary_size <= len(SPECIAL):
        raise ValueError(
            f"Argument `vocabulary_size` must be above {len(SPECIAL)}, the number of special ids, "
            f"or every word is unknown. Received: {vocabulary_size}"
        )
    counts = Counter(word for text in texts for word in text.split())
    if not counts:
        raise ValueError(f"Argument `{name}` must hold a word. Received: {texts!r:.80}")
    # Of equally frequent words the first by the alphabet, so that each run has the same ids.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    pieces = [
        *(SPECIAL[index] for index in sorted(SPECIAL)),
        *(_spelled(word) for word in ranked[: vocabulary_size - len(SPECIAL)]),
    ]
    words = Words(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, SPECIAL[UNK]))
    # Each word takes the space before it along, the first one that of the normaliser.
    words.normalizer = normalizers.Prepend(" ")
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "merged_with_next"), _BYTES]
    )
    words.decoder = decoders.ByteLevel()
    words.post_processor = processors.TemplateProcessing(
        single=f"$A {SPECIAL[EOS]}", special_tokens=[(SPECIAL[EOS], EOS)]
    )
    return words


def _spelled(word):
    [(piece, _)] = _BYTES.pre_tokenize_str(f" {word}")
    return piece


def all_known(tokenizer, pair):
    """Whether neither side of a pair holds an unknown word."""
    return UNK not in [
        *tokenizer.encode_source(pair.source),
        *tokenizer.encode_target(pair.target),
    ]


def words_of(tokens):
    """The words behind the readable tokens of a `Translation`, `</s>` left out."""
    return [token.strip() for token in tokens if token != SPECIAL[EOS]]
