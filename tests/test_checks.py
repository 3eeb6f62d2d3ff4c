import numpy as np
import pytest

from keras_bahdanau.checks import check_positive

pytestmark = pytest.mark.once


@pytest.mark.parametrize("value", [0, -3, 1.0, "1", None, True, np.float32(1)], ids=repr)
def test_what_is_no_positive_integer_is_named(value):
    with pytest.raises(ValueError, match=r"Argument `second` must be a positive integer. Received"):
        check_positive(first=1, second=value, third=0)


def test_positive_integers_pass():
    assert check_positive(first=1, second=10**9) is None
