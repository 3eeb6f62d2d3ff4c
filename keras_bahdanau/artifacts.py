"""Artifacts: `export` writes one, and `Translator` runs it without Keras."""

from typing import TYPE_CHECKING, Any

from keras_bahdanau_runtime.translator import Translator as Translator

if TYPE_CHECKING:
    from keras_bahdanau_export import export as export


def __getattr__(name: str) -> Any:
    # Not above, because the export imports Keras.
    if name == "export":
        from keras_bahdanau_export import export

        return export
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
