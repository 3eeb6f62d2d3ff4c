"""The entry point of the command `keras-bahdanau`: a mistake is one line, not a traceback."""

import os
import sys

from keras_bahdanau_runtime.errors import ArtifactError, MissingDependencyError
from keras_bahdanau_runtime.files import add_path_to_errors


def main() -> None:
    """Runs the command; exit status 1 and one line on standard error for a user's mistake."""
    # TensorFlow reads these when it is imported. Without the first, notes on GPUs drown results;
    # with the second, a training step takes two thirds of the time on processors without AVX-512,
    # for which it leaves oneDNN out.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    try:
        # Imported here, because an installation without the extra `cli` has this entry point, too.
        from keras_bahdanau_export.commands.app import app
        from keras_bahdanau_export.commands.shown import say_error
    except MissingDependencyError as error:
        sys.exit(f"error: {error}")
    try:
        try:
            app()
        finally:
            _flush_output()
    except BrokenPipeError:  # nobody reads on, as after `| head`
        sys.exit(1)
    except (ValueError, OSError, ImportError, MemoryError, ArtifactError) as error:
        say_error(error)
        sys.exit(1)


def _flush_output() -> None:
    """Writes what standard output still holds, or drops it, so that Python does not try again."""
    if sys.stdout is None:
        return
    try:
        with add_path_to_errors("standard output"):
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


if __name__ == "__main__":
    main()
