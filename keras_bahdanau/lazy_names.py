"""Names of a package that are imported on first use, so that options and corpora need no Keras."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import lazy_loader  # type: ignore[import-untyped]

from keras_bahdanau_runtime.errors import KERAS_BACKENDS, missing_keras


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package from its stub file.

    Args:
        package: `__name__` of the package.
        file: `__file__` of the package; the stub `__init__.pyi` is beside it.
    """
    load, names, public = lazy_loader.attach_stub(package, file)

    def load_or_explain(name: str) -> Any:
        try:
            value = load(name)
            if sys.modules.get("keras") is not None:
                importlib.import_module("keras_bahdanau.registered")
            return value
        except ModuleNotFoundError as error:
            if error.name not in ("keras", *KERAS_BACKENDS):
                raise
            raise missing_keras(error.name) from error

    return load_or_explain, names, public


class _AfterKeras:
    """Finder that imports `registered` after the first import of Keras by any module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load_keras = spec.loader.exec_module

        def load_keras_and_classes(module: ModuleType) -> None:
            load_keras(module)
            # While a module of the library is the first to import Keras, it is incomplete. Its
            # namespace imports `registered` itself.
            if not any(map(_is_incomplete, [*sys.modules.values()])):
                importlib.import_module("keras_bahdanau.registered")

        spec.loader.exec_module = load_keras_and_classes  # type: ignore[method-assign]
        return spec


def _is_incomplete(module: ModuleType) -> bool:
    """Return whether the import of a module of the library has begun and not ended."""
    spec = getattr(module, "__spec__", None)
    in_library = spec is not None and spec.name.startswith("keras_bahdanau.")
    return in_library and getattr(spec, "_initializing", False)


def register_with_keras() -> None:
    """Import the classes that a saved model may contain, now or when Keras is imported."""
    if sys.modules.get("keras") is not None:
        importlib.import_module("keras_bahdanau.registered")
    else:
        sys.meta_path.insert(0, _AfterKeras())
