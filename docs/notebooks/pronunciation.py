# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Pronunciation: from letters to phonemes
#
# A small model learns how words are pronounced. The words are generated: they look like Spanish
# ones, and eleven rules of Spanish spelling give their phonemes. So the right answer is known for
# every word, and the errors show which rules the model has not learned.
#
# It needs the [extras](../get-started/install.md) `jax,text,plot`
# and takes less than a minute on two cores.
# For a file with your own words no code is needed: see "What do you have?".

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or tensorflow, or torch

import random
import re
from pathlib import Path

import keras

from keras_bahdanau import (
    BeamSearch,
    RNNSearch,
    TokenCrossentropy,
    Tokenizer,
    TranslationDataset,
    plot_alignment,
)
from keras_bahdanau_runtime.text.error_rates import compare, confusions, error_rates, worst_outputs

# %matplotlib inline

# %% tags=["parameters"]
WORDS = 800
EPOCHS = 15
UNITS = 64
OUTPUT = Path("build/notebooks")

# %% [markdown]
# ## Words
#
# Phonemes are written with spaces between them, because some have two characters. A letter may be
# silent (h), two letters may be one phoneme (ch, ll, rr, qu), and the same letter may have two
# phonemes: c and g before e and i, r at the beginning of a word.

# %%
TEST_WORDS = 200
ONSETS = "b c d f g h j l m n p r s t v z ch ll rr ñ br cr tr pl gu qu".split()
VOWELS = {"gu": "ei", "qu": "ei"}  # the u of these is silent only before e and i
CODAS = ["", "", "", "n", "s", "r", "l"]
RULES = [
    (r"ch", "tʃ"), (r"ll", "ʎ"), (r"rr|^r", "r"), (r"qu", "k"), (r"gu(?=[ei])", "ɡ"), (r"h", ""),
    (r"c(?=[ei])", "θ"), (r"g(?=[ei])|j", "x"), (r"z", "θ"), (r"ñ", "ɲ"), (r"v", "b"),
]  # fmt: skip
LETTERS = {"c": "k", "g": "ɡ", "r": "ɾ"}  # the other letters are their own phonemes
PATTERN = re.compile("|".join(f"({pattern})" for pattern, _ in RULES) + "|(.)")


def spell(rng):
    """Return a word of two or three syllables."""
    syllables = []
    for number in range(rng.randint(2, 3)):
        onset = rng.choice([each for each in ONSETS if number or each != "rr"])
        syllables.append(onset + rng.choice(VOWELS.get(onset, "aeiou")) + rng.choice(CODAS))
    return "".join(syllables)


def pronounce(word):
    """Return the phonemes of a word, separated by spaces."""
    phonemes = []
    for match in PATTERN.finditer(word):
        is_rule = match.lastindex <= len(RULES)
        phonemes.append(
            RULES[match.lastindex - 1][1] if is_rule else LETTERS.get(match[0], match[0])
        )
    return " ".join(filter(None, phonemes))


rng = random.Random(1)
words = list({spell(rng): None for _ in range(2 * (WORDS + TEST_WORDS))})
training, test = words[:WORDS], words[WORDS : WORDS + TEST_WORDS]
for word in ["quechero", "jirroñe", "gacelle"]:
    print(f"{word}\t{pronounce(word)}")

# %% [markdown]
# ## Tokens and batches
#
# The words are divided into characters and the pronunciations into symbols, the parts between
# spaces. Each side has its own vocabulary.

# %%
phonemes = [pronounce(word) for word in training]
tokenizer = Tokenizer.train(
    training, phonemes, kind=("characters", "symbols"), joint=False, min_frequency=1
)
dataset = TranslationDataset(
    tokenizer.encode_sources(training),
    tokenizer.encode_targets(phonemes),
    batch_size=64,
    bucket=16,
)
print(tokenizer.source_tokens("quechero"))
print(tokenizer.target_tokens(tokenizer.encode_target(pronounce("quechero"))))

# %% [markdown]
# ## Training

# %%
keras.utils.set_random_seed(1)
model = RNNSearch.from_tokenizer(tokenizer, units=UNITS, embedding_dim=UNITS, attention_units=UNITS)
rate = keras.optimizers.schedules.CosineDecay(5e-3, EPOCHS * len(dataset))
model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
history = model.fit(dataset, epochs=EPOCHS, verbose=0)
print("training loss by epoch:", *(f"{loss:.2f}" for loss in history.history["loss"]))

# %% [markdown]
# ## Errors
#
# The word error rate is the share of words with at least one wrong phoneme. The symbol error rate
# divides the wrong, missing and added phonemes by all phonemes. `keras-bahdanau evaluate` prints
# the same figures, and `--picture errors.svg` draws the errors.

# %%
translations = model.translate(test, search=BeamSearch(3), max_length=20)
outputs = [translation.text for translation in translations]
comparisons = compare(outputs, [[pronounce(word)] for word in test], "symbols")
rates = error_rates(comparisons)
print(f"{100 - rates['exact']:.1f}% of {len(test)} unseen words are wrong", end=", ")
print(f"{rates['ser']:.2f}% of their phonemes")
for (expected, received), count in confusions(comparisons).most_common(5):
    print(f"{expected or 'nothing'} was expected, {received or 'nothing'} received: {count} times")
for word, comparison in worst_outputs(test, comparisons)[:3]:
    print(f"{word}: expected {comparison.reference}, received {comparison.output}")

# %% [markdown]
# ## Alignment
#
# Each row is a phoneme, each column a letter. Dark cells have a large attention weight. Two letters
# of one phoneme share the weight of its row, or one of them has all of it.

# %% mystnb={"image": {"alt": "Attention weights of the phonemes of quechero over its letters"}}
OUTPUT.mkdir(parents=True, exist_ok=True)
[translation] = model.translate(["quechero"], search=BeamSearch(3), max_length=20)
tokens = [token.strip() for token in translation.tokens]
plot_alignment(
    translation.alignment, translation.source_tokens, tokens, OUTPUT / "pronunciation.png"
)
