"""The garbage collector during an export, and after it."""

import gc

import pytest

from keras_bahdanau_export.garbage_collection import (
    frozen_garbage_collection,
    without_garbage_collection,
)


@pytest.fixture
def unfrozen():
    """Undo the freezing by the test suite during a test."""
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    gc.unfreeze()
    if was_frozen:
        gc.freeze()


def test_older_objects_are_ignored_only_during_an_export(unfrozen):
    with frozen_garbage_collection():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


def test_objects_that_the_caller_froze_stay_frozen(unfrozen):
    gc.freeze()
    with frozen_garbage_collection():
        pass
    assert gc.get_freeze_count() > 1000


def test_the_collector_is_enabled_again_after_an_error():
    with pytest.raises(ValueError, match="wrong"), without_garbage_collection():
        assert not gc.isenabled()
        raise ValueError("wrong")
    assert gc.isenabled()
