"""Contexts in which Python's garbage collector examines fewer objects.

TensorFlow, Keras and tf2onnx make millions of objects, which the collector would examine again and
again.
"""

import contextlib
import gc


@contextlib.contextmanager
def frozen_garbage_collection():
    """Let the garbage collector ignore the objects that exist already, such as loaded modules."""
    if gc.get_freeze_count():  # frozen by the caller, and `gc.unfreeze` has no subset
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def without_garbage_collection():
    """Pause the garbage collector."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
