"""Keras, which is imported with the first module of the library that needs it.

Keras loads a class of another package only if its module has been imported. So all classes that a
saved model may contain are imported together with Keras, whoever imports it.
"""

import copy
import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from keras_bahdanau_runtime.errors import KERAS_BACKENDS, missing_keras

# The modules of the library that need no Keras.
WITHOUT_KERAS = frozenset(
    f"keras_bahdanau.{name}"
    for name in (
        "artifacts",
        "backend",
        "data",
        "data.blocks",
        "data.choices",
        "data.corpus",
        "data.filters",
        "data.options",
        "data.preparation",
        "data.text_statistics",
        "launcher",
        "model_defaults",
        "plot",
        "run_folder",
        "schedules",
        "text",
        "training",
        "training.initial",
        "training.options",
        "training.rules",
        "training.start",
        "user_modules",
    )
)


def import_with_keras() -> None:
    """Import the classes of saved models now, or else as soon as Keras is imported."""
    if sys.modules.get("keras") is not None:
        _import_classes()
    else:
        sys.meta_path.insert(0, _KerasFirst())


def _import_classes() -> None:
    importlib.import_module("keras_bahdanau.registered")


class _KerasFirst:
    """Finder that imports Keras and all classes before the first module that needs Keras."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of Keras, or of a module that is imported together with it.

        Raises:
            ImportError: Keras or its backend is missing. The message says what to install.
        """
        is_keras = name == "keras"
        if not is_keras and (not name.startswith("keras_bahdanau.") or name in WITHOUT_KERAS):
            return None
        sys.meta_path.remove(self)
        if is_keras:
            return _with_classes(importlib.util.find_spec(name))
        try:
            importlib.import_module("keras")
        except ModuleNotFoundError as error:
            sys.meta_path.insert(0, self)
            if error.name not in ("keras", *KERAS_BACKENDS):
                raise
            raise missing_keras(error.name) from error
        _import_classes()
        loaded = sys.modules.get(name)
        if loaded is None or loaded.__spec__ is None:
            return None
        spec = copy.copy(loaded.__spec__)
        spec.loader = _Loaded()  # type: ignore[assignment]
        return spec


def _with_classes(spec: ModuleSpec | None) -> ModuleSpec | None:
    """Return the spec of Keras, whose loader then imports the classes."""
    if spec is not None and spec.loader is not None:
        load = spec.loader.exec_module

        def load_with_classes(module: ModuleType) -> None:
            load(module)
            _import_classes()

        spec.loader.exec_module = load_with_classes  # type: ignore[method-assign]
    return spec


class _Loaded:
    """Loader of a module that has been loaded while it was searched for."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._spec = sys.modules[spec.name].__spec__
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
