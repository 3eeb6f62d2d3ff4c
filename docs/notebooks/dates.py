# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # A first translator: dates
#
# A small recurrent model with attention learns to translate dates such as "le 14 juillet 1989" to
# the form 1989-07-14. At the end a picture shows which source words it reads for each target word.
#
# It needs the [extras](../get-started/install.md) `jax,cli,plot`
# and takes less than a minute on two cores.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or tensorflow, or torch

import datetime
import random
from pathlib import Path

import babel.dates
import keras

from keras_bahdanau import (
    BeamSearch,
    RNNSearch,
    TokenCrossentropy,
    Tokenizer,
    TranslationDataset,
    plot_alignment,
)
from keras_bahdanau.text import word_alignment

# %matplotlib inline

# %% tags=["parameters"]
PAIRS = 4000
EPOCHS = 8
UNITS = 64
OUTPUT = Path("build/notebooks")

# %% [markdown]
# ## Text
#
# Babel writes dates in five languages and three formats. No day of the test set is in the training
# set.

# %%
LOCALES = ["de", "en", "es", "fr", "it"]
FORMATS = ["full", "long", "d MMMM y"]
TEST_PAIRS = 200


def write(day, locale, pattern):
    text = babel.dates.format_date(day, pattern, locale=locale)
    return " ".join(text.split())  # plain spaces instead of narrow ones


def date_pairs(count, seed):
    """Return `count` pairs of a date as people write it and its ISO form, all of different days."""
    rng = random.Random(seed)
    first, last = datetime.date(1950, 1, 1), datetime.date(2050, 1, 1)
    days = rng.sample(range(first.toordinal(), last.toordinal()), count)
    return [
        (write(day, rng.choice(LOCALES), rng.choice(FORMATS)), day.isoformat())
        for day in map(datetime.date.fromordinal, days)
    ]


pairs = date_pairs(PAIRS + TEST_PAIRS, seed=1)
training, test = pairs[:PAIRS], pairs[PAIRS:]
for text, iso in test[:3]:
    print(f"{text}  ->  {iso}")

# %% [markdown]
# ## Tokens and batches
#
# The tokenizer learns subword pieces from the training text. With `bucket=32` all batches have the
# same shape, so the training step is compiled once.

# %%
tokenizer = Tokenizer.train(
    [text for text, _ in training], [iso for _, iso in training], vocabulary_size=500
)
dataset = TranslationDataset(
    [tokenizer.encode_source(text) for text, _ in training],
    [tokenizer.encode_target(iso) for _, iso in training],
    batch_size=64,
    bucket=32,
)
print(tokenizer.source_tokens(test[0][0]))

# %% [markdown]
# ## Training
#
# `RNNSearch` is the model of the paper: a bidirectional GRU, additive attention and a GRU decoder.
# It is a Keras model, so `compile` and `fit` work as usual.

# %%
keras.utils.set_random_seed(1)
model = RNNSearch(
    tokenizer.source_vocabulary_size,
    tokenizer.target_vocabulary_size,
    units=UNITS,
    embedding_dim=UNITS,
    attention_units=UNITS,
    maxout_units=UNITS,
    reset_after=True,
    initializer=None,
    tokenizer=tokenizer,
)
rate = keras.optimizers.schedules.CosineDecay(5e-3, EPOCHS * len(dataset))
model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), TokenCrossentropy())
history = model.fit(dataset, epochs=EPOCHS, verbose=0)
print("training loss by epoch:", *(f"{loss:.2f}" for loss in history.history["loss"]))

# %% [markdown]
# ## Translation of unseen dates

# %%
translations = model.translate([text for text, _ in test], search=BeamSearch(3), max_length=12)
correct = sum(
    translation.text == iso for translation, (_, iso) in zip(translations, test, strict=True)
)
for (text, _), translation in list(zip(test, translations, strict=True))[:3]:
    print(f"{text}  ->  {translation.text}")
print(f"{correct} of {len(test)} unseen dates are correct")

# %% [markdown]
# ## Alignment
#
# Each row is a target word, each column a source word. Dark cells have a large attention weight.

# %% mystnb={"image": {"alt": "Attention weights of 1989-07-14 over the words of the French date"}}
OUTPUT.mkdir(parents=True, exist_ok=True)
[translation] = model.translate(["le 14 juillet 1989"], search=BeamSearch(3), max_length=12)
alignment = word_alignment(translation.alignment, translation.source_tokens, translation.tokens)
plot_alignment(*alignment, OUTPUT / "dates.png")
