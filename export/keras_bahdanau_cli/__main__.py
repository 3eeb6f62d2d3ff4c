"""Entry point of the command `keras-bahdanau`, which prints errors as one line."""

import os
import sys

from keras_bahdanau_runtime.errors import ArtifactError, MissingDependencyError
from keras_bahdanau_runtime.files import add_path_to_errors


def main() -> None:
    """Run the command; after an error print one line, and exit with its `exit_status`."""
    # TensorFlow reads these when it is imported. The first hides its notes on GPUs. Without the
    # second a training step takes two thirds of the time on processors without AVX-512, for which
    # TensorFlow disables oneDNN.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    try:
        # Imported here, because this entry point is also installed without the extra `cli`.
        from keras_bahdanau_cli.app import run
        from keras_bahdanau_cli.exit_status import FAILED, IncompleteError, exit_status
        from keras_bahdanau_cli.terminal import print_error
    except MissingDependencyError as error:
        sys.exit(f"error: {error}")
    try:
        try:
            run()
        finally:
            _flush_output()
    except BrokenPipeError:  # the reader of the pipe has exited, as after `| head`
        sys.exit(FAILED)
    except (
        *(ValueError, OSError, ImportError, MemoryError),
        *(ArtifactError, IncompleteError),
    ) as error:
        status = exit_status(error)
        print_error(error, status=status)
        sys.exit(status)


def _flush_output() -> None:
    """Flush standard output; if that fails, discard the rest, so that Python does not try again."""
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
