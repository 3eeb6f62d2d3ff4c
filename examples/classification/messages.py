"""Generated messages to a help desk: stories about other people, and one request with an intent.

The stories use the same verbs as the request. In "last year my sister had to cancel it, could you
please replace it", only "replace" is requested.
"""

import numpy as np

# Intents and the verbs that express them.
INTENTS = {
    "cancel": ("cancel", "end", "terminate", "stop"),
    "refund": ("refund", "reimburse", "repay", "compensate"),
    "repair": ("repair", "fix", "mend", "service"),
    "replace": ("replace", "exchange", "swap", "change"),
    "deliver": ("deliver", "ship", "send", "dispatch"),
    "explain": ("explain", "describe", "clarify", "demonstrate"),
}
REQUESTS = ("please", "could you", "kindly", "i want you to", "can someone", "i ask you to")
STORY_VERBS = ("had to", "used to", "tried to", "refused to", "forgot to", "did not")
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
MAX_LENGTH = 72


def generate(count, seed):
    """Generate random messages.

    Returns:
        Ids `(B, MAX_LENGTH)`, intent indices `(B,)`, and a list of `(first, last)` word positions
        of each request, its verb included.
    """
    rng = np.random.default_rng(seed)
    ids = np.zeros((count, MAX_LENGTH), "int32")
    intents = rng.integers(0, len(INTENTS), count)
    spans = []
    for row, intent in zip(ids, intents, strict=True):
        sentences = [_story(rng) for _ in range(rng.integers(3, 6))]
        sentences += [rng.choice(REMARKS) for _ in range(rng.integers(0, 3))]
        rng.shuffle(sentences)
        position = rng.integers(0, len(sentences) + 1)
        opening, verb = rng.choice(REQUESTS), _verb(intent, rng)
        sentences.insert(position, f"{opening} {verb} {rng.choice(THINGS)}")
        words = " ".join(sentences).split()
        first = len(" ".join(sentences[:position]).split())
        spans.append((first, first + len(opening.split())))
        row[: len(words)] = [WORDS.index(word) for word in words]
    return ids, intents, spans


def decode(ids):
    """Return the words of one message."""
    return [WORDS[i] for i in ids if i]


def _verb(intent, rng):
    return rng.choice(list(INTENTS.values())[intent])


def _story(rng):
    """Return one sentence about what other people did or did not do."""
    verb = _verb(rng.integers(0, len(INTENTS)), rng)
    words = [rng.choice(PEOPLE), rng.choice(STORY_VERBS), verb, rng.choice(THINGS)]
    return " ".join([rng.choice(TIMES), *words] if rng.random() < 0.5 else words)


def _words():
    phrases = [*REQUESTS, *STORY_VERBS, *PEOPLE, *TIMES, *THINGS, *REMARKS]
    return sorted(
        {word for group in [*INTENTS.values(), phrases] for text in group for word in text.split()}
    )


WORDS = ["<pad>", *_words()]
