# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # An attention layer in your own model
#
# A review mentions several aspects of a restaurant, each with an opinion. The model receives the
# review and one aspect, and predicts whether the opinion of this aspect is positive. The aspect is
# the query of a `BahdanauAttention` layer, and the words are the values that it attends to.
#
# It needs the [extras](../get-started/install.md) `jax,plot`
# and takes less than a minute on two cores.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or tensorflow, or torch

from pathlib import Path

import keras
import numpy as np

from keras_bahdanau import BahdanauAttention, plot_alignment

# %matplotlib inline

# %% tags=["parameters"]
REVIEWS = 600
EPOCHS = 30
UNITS = 32
OUTPUT = Path("build/notebooks")

# %% [markdown]
# ## Reviews
#
# A review has four of six aspects. Ids are numbers of words, and 0 is padding.

# %%
ASPECTS = ["food", "service", "room", "price", "music", "coffee"]
GOOD = ["great", "lovely", "excellent", "perfect", "pleasant", "wonderful"]
BAD = ["poor", "terrible", "awful", "disappointing", "unpleasant", "horrible"]
OTHER = ["<pad>", "the", "was", "really", "and", "but", "while"]
WORDS = [*OTHER, *ASPECTS, *GOOD, *BAD]
LENGTH = 24


def generate(count, seed):
    """Return word ids `(count, LENGTH)`, aspects `(count, 1)` and labels `(count, 1)`."""
    rng = np.random.default_rng(seed)
    reviews = np.zeros((count, LENGTH), "int32")
    queries = np.zeros((count, 1), "int32")
    labels = np.zeros((count, 1), "float32")
    for row in range(count):
        aspects = rng.permutation(len(ASPECTS))[:4]
        is_good = rng.integers(0, 2, len(aspects))
        words = []
        for aspect, good in zip(aspects, is_good, strict=True):
            words += ["the", ASPECTS[aspect], "was", *["really"] * rng.integers(0, 2)]
            words += [rng.choice(GOOD if good else BAD), rng.choice(["and", "but", "while"])]
        ids = [WORDS.index(word) for word in words[:-1]]
        reviews[row, : len(ids)] = ids
        choice = rng.integers(len(aspects))
        queries[row], labels[row] = aspects[choice], is_good[choice]
    return reviews, queries, labels


def readable(ids):
    return [WORDS[i] for i in ids if i]


reviews, queries, labels = generate(REVIEWS, seed=1)
print(" ".join(readable(reviews[0])))
print(f"{ASPECTS[queries[0, 0]]}: {'positive' if labels[0, 0] else 'negative'}")

# %% [markdown]
# ## The model
#
# `BahdanauAttention(units)(query, value)` returns the context and, on request, the weights. Query
# and value may have different widths. The baseline replaces the attention by the mean of the words;
# it is otherwise the same.


# %%
def build(use_attention):
    """Return a model of a review and an aspect to a logit, with attention also to the weights."""
    review = keras.Input((LENGTH,), dtype="int32", name="review")
    aspect = keras.Input((1,), dtype="int32", name="aspect")
    words = keras.layers.Embedding(len(WORDS), UNITS)(review)
    values = keras.layers.Conv1D(UNITS, 5, padding="same", activation="relu")(words)
    query = keras.layers.Embedding(len(ASPECTS), UNITS)(aspect)[:, 0]
    if use_attention:
        context, weights = BahdanauAttention(UNITS)(
            query, values, value_mask=review != 0, return_attention_scores=True
        )
    else:
        context = keras.layers.GlobalAveragePooling1D()(values, mask=review != 0)
    hidden = keras.layers.Dense(UNITS, "relu")(keras.ops.concatenate([context, query], axis=-1))
    logit = keras.layers.Dense(1)(hidden)
    return keras.Model([review, aspect], [logit, weights] if use_attention else logit)


def train(model):
    classifier = keras.Model(model.inputs, keras.tree.flatten(model.outputs)[0])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.Adam(3e-3), loss)
    classifier.fit([reviews, queries], labels, batch_size=50, epochs=EPOCHS, verbose=0)
    return classifier


keras.utils.set_random_seed(1)
attentive, mean = build(use_attention=True), build(use_attention=False)
classifiers = {"attention": train(attentive), "mean of the words": train(mean)}

# %% [markdown]
# ## Result on unseen reviews

# %%
*inputs, expected = generate(1000, seed=2)
for name, classifier in classifiers.items():
    is_positive = classifier.predict(inputs, verbose=0) > 0
    print(f"{name}: {np.mean(is_positive == expected):.1%} correct")

# %% [markdown]
# ## Attention weights
#
# The model reads one unseen review four times, each time with another of its aspects.

# %% mystnb={"image": {"alt": "The attention weights of four aspects over the words of a review"}}
OUTPUT.mkdir(parents=True, exist_ok=True)
words = readable(inputs[0][0])
aspects = [word for word in words if word in ASPECTS]
rows = np.repeat(inputs[0][:1], len(aspects), axis=0)
ids = np.array([[ASPECTS.index(aspect)] for aspect in aspects], "int32")
_, weights = attentive.predict([rows, ids], verbose=0)
plot_alignment(weights[:, : len(words)], words, aspects, OUTPUT / "attention_layer.png")
