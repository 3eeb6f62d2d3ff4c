"""Generated messages to a shop's help desk: a story, a request, and what the request is about.

The story says the same words as the request, of other people and other times: "last year my sister
had to cancel hers"; "could you please replace it" decides.
"""

import numpy as np

# What is asked for, and the words that ask for it.
INTENTS = {
    "cancel": ("cancel", "end", "terminate", "stop"),
    "refund": ("refund", "reimburse", "repay", "compensate"),
    "repair": ("repair", "fix", "mend", "service"),
    "replace": ("replace", "exchange", "swap", "change"),
    "deliver": ("deliver", "ship", "send", "dispatch"),
    "explain": ("explain", "describe", "clarify", "demonstrate"),
}
REQUESTS = ("please", "could you", "kindly", "i want you to", "can someone", "i ask you to")
ELSEWHERE = ("had to", "used to", "tried to", "refused to", "forgot to", "did not")
PEOPLE = ("my sister", "a neighbour", "your colleague", "the shop", "my brother", "somebody")
TIMES = ("last year", "in march", "before", "at first", "on monday", "long ago")
THINGS = ("the lamp", "the phone", "this order", "the contract", "my radio", "it", "the chair")
REMARKS = (
    "thank you for the quick answer",
    "the weather was bad all week",
    "i have been a customer for many years",
    "the parcel came in a blue box",
    "the manual is long",
    "we live on the second floor",
    "the price was good",
)
LONGEST = 72


def draw(count, seed):
    """Messages.

    Returns:
        Ids `(B, LONGEST)`, the number of each one's intent `(B,)`, and the places `(first, last)`
        of the words that ask for it.
    """
    rng = np.random.default_rng(seed)
    ids = np.zeros((count, LONGEST), "int32")
    intents = rng.integers(0, len(INTENTS), count)
    spans = []
    for row, intent in zip(ids, intents, strict=True):
        parts = [_story(rng) for _ in range(rng.integers(3, 6))]
        parts += [rng.choice(REMARKS) for _ in range(rng.integers(0, 3))]
        rng.shuffle(parts)
        place = rng.integers(0, len(parts) + 1)
        opening, word = rng.choice(REQUESTS), _act(intent, rng)
        parts.insert(place, f"{opening} {word} {rng.choice(THINGS)}")
        words = " ".join(parts).split()
        first = len(" ".join(parts[:place]).split())
        spans.append((first, first + len(opening.split())))
        row[: len(words)] = [WORDS.index(word) for word in words]
    return ids, intents, spans


def text(ids):
    """The words of one message."""
    return [WORDS[i] for i in ids if i]


def _act(intent, rng):
    return rng.choice(list(INTENTS.values())[intent])


def _story(rng):
    """One sentence about what others did or did not do."""
    word = _act(rng.integers(0, len(INTENTS)), rng)
    parts = [rng.choice(PEOPLE), rng.choice(ELSEWHERE), word, rng.choice(THINGS)]
    return " ".join([rng.choice(TIMES), *parts] if rng.random() < 0.5 else parts)


def _words():
    phrases = [*REQUESTS, *ELSEWHERE, *PEOPLE, *TIMES, *THINGS, *REMARKS]
    return sorted(
        {word for acts in [*INTENTS.values(), phrases] for a in acts for word in a.split()}
    )


WORDS = ["<pad>", *_words()]
