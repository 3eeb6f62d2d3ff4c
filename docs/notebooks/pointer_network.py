# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # A pointer network that sorts
#
# In a pointer network (arXiv 1506.03134) the attention weights are the output: at each step they
# are a distribution over the positions of the input. Here the network points at the numbers of a
# list in increasing order. There is one weight per number, so it accepts lists of any length.
#
# It needs the [extras](../get-started/install.md) `jax,plot`
# and takes less than a minute on two cores. The gallery has a larger network that is compared
# with a softmax over positions.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # or tensorflow, or torch

from pathlib import Path

import keras
import numpy as np

from keras_bahdanau import AttentiveDecoder, BahdanauAttention, BidirectionalEncoder, plot_alignment

# %matplotlib inline

# %% tags=["parameters"]
LISTS = 8000
EPOCHS = 8
UNITS = 48
OUTPUT = Path("build/notebooks")

# %% [markdown]
# ## Lists of numbers
#
# Lists have 4 to 7 numbers. `PADDING` fills the rest of the inputs and labels.

# %%
PADDING = -100


def generate(count, shortest, longest, seed):
    """Return lists of distinct numbers `(count, longest, 1)` and their order `(count, longest)`."""
    rng = np.random.default_rng(seed)
    numbers = np.full((count, longest, 1), PADDING, "float32")
    order = np.full((count, longest), PADDING, "int32")
    for row in range(count):
        size = rng.integers(shortest, longest + 1)
        numbers[row, :size, 0] = rng.choice(50, size, replace=False) / 5 - 5
        order[row, :size] = numbers[row, :size, 0].argsort()
    return numbers, order


numbers, order = generate(LISTS, 4, 7, seed=1)
print(np.round(numbers[0, :, 0], 1), order[0])

# %% [markdown]
# ## The network
#
# The decoder returns the logits of its attention, `(B, Ty, Tx)`. They are the output of the model,
# so its loss is a cross-entropy over positions. The inputs of the decoder are zeros, because the
# context already contains the number that it pointed at last.

# %%
keras.utils.set_random_seed(1)
inputs = keras.Input((None, 1))
annotations = BidirectionalEncoder(UNITS)(keras.layers.Masking(PADDING)(inputs))
decoder = AttentiveDecoder(keras.layers.GRUCell(UNITS), BahdanauAttention(UNITS))
_, logits = decoder(keras.ops.zeros_like(inputs), annotations, return_attention_logits=True)
network = keras.Model(inputs, logits)

rate = keras.optimizers.schedules.CosineDecay(5e-3, EPOCHS * LISTS // 100)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING)
network.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), loss)
history = network.fit(numbers, order, batch_size=100, epochs=EPOCHS, verbose=0)
print("training loss by epoch:", *(f"{loss:.2f}" for loss in history.history["loss"]))

# %% [markdown]
# ## Result on unseen lists
#
# A list counts as sorted if all of its positions are correct. Lists of 8 are longer than any list
# of the training set.

# %%
for size in (4, 5, 6, 7, 8):
    unseen, expected = generate(500, size, size, seed=2)
    is_sorted = (network.predict(unseen, verbose=0).argmax(-1) == expected).all(axis=1)
    print(f"{size} numbers: {is_sorted.mean():.1%} of the lists sorted")

# %% [markdown]
# ## Where the network points

# %% mystnb={"image": {"alt": "The attention weights of each step over the numbers of a list"}}
OUTPUT.mkdir(parents=True, exist_ok=True)
unseen, expected = generate(1, 7, 7, seed=3)
weights = keras.ops.softmax(network.predict(unseen, verbose=0)[0])
names = np.array([f"{number:.1f}" for number in unseen[0, :, 0]])
plot_alignment(
    keras.ops.convert_to_numpy(weights),
    names.tolist(),
    names[expected[0]].tolist(),
    OUTPUT / "pointer_network.png",
    title="position of each next number",
)
