"""Exports are tested under TensorFlow, which traces them without another process."""

from pathlib import Path

import keras
import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if keras.config.backend() != "tensorflow":
        skip = pytest.mark.skip(reason="TensorFlow traces; tests/conformance exports from others.")
        for item in items:
            if item.path.is_relative_to(FOLDER):
                item.add_marker(skip)
