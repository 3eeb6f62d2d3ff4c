"""Exit statuses of the commands."""

from keras_bahdanau_runtime.errors import (
    CorruptArtifactError,
    MissingArtifactError,
    UnsupportedArtifactError,
)

FAILED, USAGE, INCOMPLETE, ARTIFACT, INTERRUPTED = 1, 2, 3, 4, 130
# The meaning of each status, for the documentation.
EXIT_STATUSES = {
    0: "Everything is done.",
    FAILED: "Another failure, such as a full disk, too little memory or a missing package. Of"
    " `verify` and `export`: the models differ too much.",
    USAGE: "A wrong argument, or an input that is missing or damaged.",
    INCOMPLETE: "Some rows, pairs or files have no result. The others are complete. Messages name"
    " each of the missing ones.",
    ARTIFACT: "The artifact is missing, damaged or not made for this use.",
    INTERRUPTED: "Interrupted by Ctrl-C.",
}


class IncompleteError(Exception):
    """Some rows, pairs or files have no result; the others are complete."""


def exit_status(error: BaseException) -> int:
    """Return the exit status of a command that ends with an error.

    Example:

    >>> exit_status(ValueError("a wrong argument"))
    2
    """
    statuses = {
        IncompleteError: INCOMPLETE,
        MissingArtifactError: ARTIFACT,
        CorruptArtifactError: ARTIFACT,
        UnsupportedArtifactError: ARTIFACT,
        ValueError: USAGE,
        FileNotFoundError: USAGE,
    }
    matches = (status for kind, status in statuses.items() if isinstance(error, kind))
    return next(matches, FAILED)
