"""A made-up language pair whose word alignment is known, because the sentences are made with it.

The source has a small grammar and Zipf's frequencies. The target says the same word by word in
another order: adjectives follow their noun unless they are of the kind that does not, prepositions
become postpositions, and the verb goes to the end of its clause. A source word becomes no, one or
two target words and often has a second translation, chosen at random. Different words share
translations, and the second words of two-word translations are a few particles, so that
co-occurrence alone misleads.
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
PARTICLES = 6  # of each class
TWO_WORDS = 0.3  # share of the translations that have two words
SECOND_TRANSLATION = 0.4  # share of the words that have two translations
SECOND_USED = 0.35  # how often the second of two translations is used
COMPANY = 0.5  # how often an adjective, adverb or object is the one its noun or verb mostly has
LENGTHS = range(4, 21)


class Pair(NamedTuple):
    """Two sentences and their alignment.

    Attributes:
        source: List of source words, ints from 0.
        target: List of target words, likewise.
        links: Set of (source place, target place), places from 0.
    """

    source: list
    target: list
    links: set


class Phrase(NamedTuple):
    """Source words, and the places of these words in the order of the target."""

    words: list
    order: list


class Language:
    """Draws sentence pairs; everything follows from the seed.

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
        """One or two translations, each a list of target words; articles have none."""
        if kind == "determiner" and rank % 2 == 0:
            return [[]]
        found = []
        for _ in range(1 + (self.rng.random() < SECOND_TRANSLATION)):
            words = [start + self.rng.randrange(shared)]
            if self.rng.random() < TWO_WORDS:
                words.append(start + shared + self.rng.randrange(PARTICLES))
            found.append(words)
        return found

    def pair(self):
        """A `Pair` whose source has 4 to 20 words."""
        while True:
            phrase = self._clause()
            if self.rng.random() < 0.4:
                phrase = _join([phrase, self._word("conjunction"), self._clause()])
            if len(phrase.words) in LENGTHS:
                break
        target, links = [], set()
        for place in phrase.order:
            choices = self.translations[phrase.words[place]]
            choice = choices[int(len(choices) == 2 and self.rng.random() < SECOND_USED)]
            links |= {(place, len(target) + i) for i in range(len(choice))}
            target += choice
        return Pair(phrase.words, target, links)

    def _word(self, kind, company=None):
        """The word of rank r with a probability proportional to 1 / (r + 2), or a favourite.

        The favourite of word w of another class is word 7w + 3, modulo the size of this one.
        """
        size = CLASSES[kind][0]
        if company is not None and self.rng.random() < COMPANY:
            rank = (7 * company.words[0] + 3) % size
        else:
            [rank] = self.rng.choices(range(size), [1 / (rank + 2) for rank in range(size)])
        return Phrase([self.first[kind] + rank], [0])

    def _few(self):
        """0, 1 or 2."""
        return self.rng.choices(range(3), [0.5, 0.35, 0.15])[0]

    def _noun_phrase(self, verb=None):
        noun = self._word("noun", verb)
        parts = [self._word("determiner")] if self.rng.random() < 0.7 else []
        parts += [self._word("adjective", noun) for _ in range(self._few())]
        parts.append(noun)
        # Every third adjective stays before the noun, as the determiner does.
        follow = [
            place
            for place, part in enumerate(parts[:-1])
            if part.words[0] >= self.first["adjective"] and part.words[0] % 3
        ]
        stay = [place for place in range(len(parts)) if place not in follow]
        return _join(parts, [*stay, *reversed(follow)])

    def _clause(self):
        """Subject, verb, adverb, object, phrases with prepositions; in the target the verb ends."""
        verb = self._word("verb")
        parts = [self._noun_phrase(), verb]
        if self.rng.random() < 0.3:
            parts.append(self._word("adverb", verb))
        if self.rng.random() < 0.7:
            parts.append(self._noun_phrase(verb))
        for _ in range(self._few()):
            parts.append(_join([self._word("preposition"), self._noun_phrase()], [1, 0]))
        return _join(parts, [0, *range(2, len(parts)), 1])


def _join(parts, order=None):
    """One phrase of several, which stand in the target in the given order."""
    starts = [0, *itertools.accumulate(len(part.words) for part in parts)]
    order = range(len(parts)) if order is None else order
    return Phrase(
        [word for part in parts for word in part.words],
        [starts[i] + place for i in order for place in parts[i].order],
    )


def _spell(rng, count, consonants, vowels):
    """Different words of one to three syllables, the short ones first."""
    words = {}
    while len(words) < count:
        syllables = 1 + min(2, len(words) // 30)
        letters = [rng.choice(part) for _ in range(syllables) for part in (consonants, vowels)]
        words.setdefault("".join(letters))
    return list(words)
