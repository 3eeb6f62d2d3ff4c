"""A synthetic language pair with known word alignments.

The source has a small grammar and Zipfian word frequencies. The target is a word-by-word
translation in another order: two thirds of the adjectives follow their noun, prepositions become
postpositions, and the verb goes to the end of its clause. A source word becomes zero, one or two
target words and often has a second translation, chosen at random. Different words share
translations, and the second words of two-word translations are a few particles, so co-occurrence
alone gives wrong links.
"""

import itertools
import random
from typing import NamedTuple

# Word class: number of source words, number of target words they share.
CLASSES = {
    "determiner": (4, 3),
    "adjective": (60, 48),
    "noun": (150, 120),
    "verb": (60, 48),
    "adverb": (20, 16),
    "preposition": (12, 9),
    "conjunction": (4, 3),
}
PARTICLES = 6  # per class
TWO_WORDS = 0.3  # fraction of translations with two words
SECOND_TRANSLATION = 0.4  # fraction of words with two translations
SECOND_USED = 0.35  # probability of the second of two translations
COLLOCATION = 0.5  # probability that an adjective, adverb or object is the preferred one
LENGTHS = range(4, 21)


class Pair(NamedTuple):
    """Two sentences and their alignment.

    Attributes:
        source: List of source words, ints from 0.
        target: List of target words, ints from 0.
        links: Set of (source position, target position), from 0.
    """

    source: list
    target: list
    links: set


class Phrase(NamedTuple):
    """Source words, and their positions in target order."""

    words: list
    order: list


class Language:
    """Generator of sentence pairs, determined by its seed.

    Attributes:
        source_words, target_words: Lists of the vocabularies' words as strings.
    """

    def __init__(self, seed=0):
        self.rng = random.Random(seed)
        self.first, self.translations = {}, []
        source_size, target_size = 0, 0
        for kind, (size, shared) in CLASSES.items():
            self.first[kind] = source_size
            source_size += size
            for rank in range(size):
                self.translations.append(self._translations(kind, rank, target_size, shared))
            target_size += shared + PARTICLES
        self.source_words = _spell(self.rng, source_size, "ptkbdgmnlrs", "aeiou")
        self.target_words = _spell(self.rng, target_size, "fvzxhwjqcy", "áéíóú")

    def _translations(self, kind, rank, start, shared):
        """Return one or two translations, lists of target words; articles have an empty one."""
        if kind == "determiner" and rank % 2 == 0:
            return [[]]
        translations = []
        for _ in range(1 + (self.rng.random() < SECOND_TRANSLATION)):
            words = [start + self.rng.randrange(shared)]
            if self.rng.random() < TWO_WORDS:
                words.append(start + shared + self.rng.randrange(PARTICLES))
            translations.append(words)
        return translations

    def pair(self):
        """Return a random `Pair` with 4 to 20 source words."""
        while True:
            phrase = self._clause()
            if self.rng.random() < 0.4:
                phrase = _join([phrase, self._word("conjunction"), self._clause()])
            if len(phrase.words) in LENGTHS:
                break
        target, links = [], set()
        for position in phrase.order:
            choices = self.translations[phrase.words[position]]
            choice = choices[int(len(choices) == 2 and self.rng.random() < SECOND_USED)]
            links |= {(position, len(target) + i) for i in range(len(choice))}
            target += choice
        return Pair(phrase.words, target, links)

    def _word(self, kind, head=None):
        """Return a random word of a class, possibly the one that collocates with `head`.

        The word of rank r has a probability proportional to 1 / (r + 2). Word w of another class
        collocates with word 7w + 3, modulo the size of this class.
        """
        size = CLASSES[kind][0]
        if head is not None and self.rng.random() < COLLOCATION:
            rank = (7 * head.words[0] + 3) % size
        else:
            [rank] = self.rng.choices(range(size), [1 / (rank + 2) for rank in range(size)])
        return Phrase([self.first[kind] + rank], [0])

    def _small_count(self):
        """Return 0, 1 or 2."""
        return self.rng.choices(range(3), [0.5, 0.35, 0.15])[0]

    def _noun_phrase(self, verb=None):
        noun = self._word("noun", verb)
        parts = [self._word("determiner")] if self.rng.random() < 0.7 else []
        parts += [self._word("adjective", noun) for _ in range(self._small_count())]
        parts.append(noun)
        # Every third adjective stays before the noun, like the determiner.
        follow = [
            position
            for position, part in enumerate(parts[:-1])
            if part.words[0] >= self.first["adjective"] and part.words[0] % 3
        ]
        stay = [position for position in range(len(parts)) if position not in follow]
        return _join(parts, [*stay, *reversed(follow)])

    def _clause(self):
        """Return subject, verb, adverb, object, prepositional phrases; verb-final in the target."""
        verb = self._word("verb")
        parts = [self._noun_phrase(), verb]
        if self.rng.random() < 0.3:
            parts.append(self._word("adverb", verb))
        if self.rng.random() < 0.7:
            parts.append(self._noun_phrase(verb))
        for _ in range(self._small_count()):
            parts.append(_join([self._word("preposition"), self._noun_phrase()], [1, 0]))
        return _join(parts, [0, *range(2, len(parts)), 1])


def _join(parts, order=None):
    """Concatenate phrases; `order` lists them in target order."""
    starts = [0, *itertools.accumulate(len(part.words) for part in parts)]
    order = range(len(parts)) if order is None else order
    return Phrase(
        [word for part in parts for word in part.words],
        [starts[i] + position for i in order for position in parts[i].order],
    )


def _spell(rng, count, consonants, vowels):
    """Return distinct words of one to three syllables, short ones first."""
    words = {}
    while len(words) < count:
        syllables = 1 + min(2, len(words) // 30)
        letters = [rng.choice(part) for _ in range(syllables) for part in (consonants, vowels)]
        words.setdefault("".join(letters))
    return list(words)
