# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Serve an artifact from Python
#
# A model is trained, exported as an artifact, and opened with onnxruntime, first in this process
# and then by the HTTP service. An artifact runs without Keras, TensorFlow, JAX and torch. The model
# learns to write numbers in words as digits: "four thousand two hundred seven" is 4207.
#
# It needs the [extras](../get-started/install.md) `tensorflow,export,serve,cli,plot`
# and takes less than a minute on two cores.

# %%
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # or jax, or torch

import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import keras

from keras_bahdanau import (
    GreedySearch,
    RNNSearch,
    TokenCrossentropy,
    Tokenizer,
    TranslationDataset,
    export,
    plot_alignment,
)
from keras_bahdanau.text import word_alignment
from keras_bahdanau_runtime import Translator

# %matplotlib inline

# %% tags=["parameters"]
NUMBERS = 3000
EPOCHS = 8
UNITS = 48
OUTPUT = Path("build/notebooks")

# %% [markdown]
# ## A small model

# %%
ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number):
    """Return a number below 10,000 in English words."""
    if number < 20:
        return ONES[number]
    if number < 100:
        first, rest = TENS[number // 10 - 2], number % 10
    elif number < 1000:
        first, rest = f"{ONES[number // 100]} hundred", number % 100
    else:
        first, rest = f"{ONES[number // 1000]} thousand", number % 1000
    return f"{first} {in_words(rest)}" if rest else first


def digits(number):
    """Return the digits of a number, separated by spaces so that each is a token."""
    return " ".join(str(number))


numbers = random.Random(1).sample(range(10_000), NUMBERS + 200)
training, test = numbers[:NUMBERS], numbers[NUMBERS:]
texts, targets = [*map(in_words, training)], [*map(digits, training)]
tokenizer = Tokenizer.train(texts, targets, vocabulary_size=400, joint=False)
dataset = TranslationDataset(
    [*map(tokenizer.encode_source, texts)],
    [*map(tokenizer.encode_target, targets)],
    batch_size=64,
    bucket=16,
)
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
# ## Export
#
# The artifact is a folder. `model.onnx` contains the whole search, and `stepwise=True` adds the
# graphs that `stream` uses. The export compares the graphs with the model and fails if they differ.

# %%
artifact = OUTPUT / "numbers"
parity = export(model, artifact, search=GreedySearch(), max_length=8, stepwise=True, overwrite=True)
print(*sorted(path.name for path in artifact.iterdir()))
print(parity)

# %% [markdown]
# ## In this process
#
# `Translator` opens the artifact with onnxruntime. `translate` groups texts of similar length into
# batches and returns the results in order. `stream` yields a translation token by token.

# %%
translator = Translator(artifact)
unseen = [*map(in_words, test)]
start = time.perf_counter()
translations = translator.translate(unseen)
seconds = time.perf_counter() - start
correct = sum(
    translation.text == digits(number)
    for translation, number in zip(translations, test, strict=True)
)
print(f"{correct} of {len(test)} unseen numbers are correct")
print(f"{len(test) / seconds:.0f} texts per second")
print("stream:", list(translator.stream("four thousand two hundred seven")))

# %% [markdown]
# ## Over HTTP
#
# `keras-bahdanau serve` starts the service. Port 0 lets the system choose a free one, and the
# service logs its address once it is ready.

# %%
command = [sys.executable, "-m", "keras_bahdanau_cli", "serve", str(artifact)]
service = subprocess.Popen(
    [*command, "--port", "0", "--grpc-port", "0"], stderr=subprocess.PIPE, text=True
)
for line in service.stderr:
    if address := re.search(r"at (http://[\d.]+:\d+)", line):
        break


def ask(path, data=None):
    """Send a GET request, or a POST request with JSON data, and return the JSON response."""
    body = None if data is None else json.dumps(data).encode()
    with urllib.request.urlopen(address[1] + path, body, timeout=30) as response:
        return json.load(response)


try:
    text = "four thousand two hundred seven"
    [translation] = ask("/translate", {"text": text, "alignments": True})["translations"]
finally:
    service.terminate()
    service.communicate()
print(f"{text}  ->  {translation['text']}, score {translation['score']:.3f}")
print(f"the service ended with status {service.returncode}")

# %% [markdown]
# ## Alignment
#
# The response contains the tokens and their attention weights. `word_alignment` joins tokens to
# words.

# %% mystnb={"image": {"alt": "The attention weights of each digit over the words of a number"}}
alignment = word_alignment(
    translation["alignment"], translation["source_tokens"], translation["tokens"]
)
plot_alignment(*alignment, OUTPUT / "serving.png")
