"""What onnxruntime is asked for."""

import pytest

from keras_bahdanau_runtime.providers import CPU, CUDA, chosen_providers, is_auto, with_tf32

BOTH = [CUDA, CPU]


@pytest.mark.parametrize(
    "providers, capture, expected",
    [
        ("auto", False, [(CUDA, {"use_tf32": "0"}), (CPU, {})]),
        (CUDA, True, [(CUDA, {"use_tf32": "0", "enable_cuda_graph": "1"})]),
        ([(CUDA, {"device_id": "1"}), CPU], False,
         [(CUDA, {"use_tf32": "0", "device_id": "1"}), (CPU, {})]),
        (with_tf32("auto", True), False, [(CUDA, {"use_tf32": "1"}), (CPU, {})]),
        (with_tf32([CUDA, CPU], True), False, [(CUDA, {"use_tf32": "1"}), (CPU, {})]),
        (CPU, True, [(CPU, {})]),
    ],
)  # fmt: skip
def test_cuda_computes_in_float32_unless_asked_otherwise(providers, capture, expected):
    assert chosen_providers(providers, BOTH, capture) == expected


def test_auto_is_what_there_is():
    assert chosen_providers("auto", [CPU], capture=True) == [(CPU, {})]
    assert chosen_providers(with_tf32("auto", True), [CPU], capture=False) == [(CPU, {})]


def test_auto_goes_on_without_what_does_not_start():
    assert is_auto("auto") and is_auto(with_tf32("auto", True))
    assert not is_auto([CUDA, CPU]) and not is_auto(with_tf32([CUDA, CPU], True))


@pytest.mark.parametrize("given", [3, None, [], (CPU, {}), [(CPU, None)], [(CPU,)], [[CPU, {}]]])
def test_what_names_no_providers(given):
    with pytest.raises(ValueError, match="`providers` must be"):
        chosen_providers(given, BOTH, capture=False)


def test_tf32_is_a_bool():
    assert with_tf32("auto", False) == "auto"
    with pytest.raises(ValueError, match=r"`tf32` must be a bool\. Received: 'yes'"):
        with_tf32("auto", "yes")


def test_a_provider_that_is_not_installed_is_named():
    with pytest.raises(ValueError, match=r"`providers` must be 'auto' or some of .*'NoProvider'"):
        chosen_providers("NoProvider", BOTH, capture=False)
