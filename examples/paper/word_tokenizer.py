"""A word-level vocabulary as in the paper: the most frequent words, and `<unk>` for the rest."""

from collections import Counter

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from keras_bahdanau import Tokenizer
from keras_bahdanau_runtime.ids import EOS, SPECIAL, UNK

# Encodes words in the byte-level alphabet, which `Tokenizer` expects.
_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def word_tokenizer(sources, targets, vocabulary_size):
    """Return a `Tokenizer` whose tokens are the most frequent words of each language.

    Args:
        sources: Source texts, with single spaces between words.
        targets: Target texts, with single spaces between words.
        vocabulary_size: Maximum number of ids per language, including the four special ids.

    Returns:
        A `keras_bahdanau.Tokenizer`.

    Raises:
        ValueError: If `vocabulary_size` has no room for words, or the texts have none.

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
        raise ValueError(f"Argument `{name}` must contain a word. Received: {texts!r:.80}")
    # Ties are sorted alphabetically, so the ids are the same in every run.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    pieces = [
        *(SPECIAL[index] for index in sorted(SPECIAL)),
        *(_to_byte_level(word) for word in ranked[: vocabulary_size - len(SPECIAL)]),
    ]
    tokenizer = RawTokenizer(
        models.WordLevel({piece: i for i, piece in enumerate(pieces)}, SPECIAL[UNK])
    )
    # Each token includes the space before its word; the normalizer adds one before the first word.
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "merged_with_next"), _BYTE_LEVEL]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {SPECIAL[EOS]}", special_tokens=[(SPECIAL[EOS], EOS)]
    )
    return tokenizer


def _to_byte_level(word):
    [(piece, _)] = _BYTE_LEVEL.pre_tokenize_str(f" {word}")
    return piece


def has_only_known_words(tokenizer, pair):
    """Return whether neither side of a pair has an unknown word."""
    return UNK not in [
        *tokenizer.encode_source(pair.source),
        *tokenizer.encode_target(pair.target),
    ]


def words_of(tokens):
    """Return the words of the readable tokens of a `Translation`, without `</s>`."""
    return [token.strip() for token in tokens if token != SPECIAL[EOS]]
