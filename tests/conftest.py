"""What every test stands on: the backend, quiet logs, and the same random numbers each time."""

import os
import random
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _seed():
    """Starts every test from the same seed; imports no Keras for a test that has none."""
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)
    else:
        random.seed(0)
        np.random.seed(0)


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled():
    """Frees what JAX compiled for a module: those are memory maps, of which it has few."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
