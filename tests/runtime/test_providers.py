"""Providers and provider options passed to onnxruntime."""

import pytest

from keras_bahdanau_runtime.session import (
    CPU,
    CUDA,
    is_auto,
    resolve_providers,
    with_cuda_options,
    with_tf32,
)

BOTH = [CUDA, CPU]


@pytest.mark.parametrize(
    "providers, expected",
    [
        ("auto", [(CUDA, {"use_tf32": "0"}), (CPU, {})]),
        ([(CUDA, {"device_id": "1"}), CPU],
         [(CUDA, {"use_tf32": "0", "device_id": "1"}), (CPU, {})]),
        (with_tf32("auto", True), [(CUDA, {"use_tf32": "1"}), (CPU, {})]),
        (with_tf32([CUDA, CPU], True), [(CUDA, {"use_tf32": "1"}), (CPU, {})]),
        (with_cuda_options(with_tf32("auto", True), enable_cuda_graph="1"),
         [(CUDA, {"use_tf32": "1", "enable_cuda_graph": "1"}), (CPU, {})]),
        (with_cuda_options(CPU, enable_cuda_graph="1"), [(CPU, {})]),
    ],
)  # fmt: skip
def test_options_of_cuda_are_those_requested_and_tf32_is_off(providers, expected):
    assert resolve_providers(providers, BOTH) == expected


def test_auto_means_the_available_providers():
    assert resolve_providers("auto", [CPU]) == [(CPU, {})]
    assert resolve_providers(with_tf32("auto", True), [CPU]) == [(CPU, {})]
    assert is_auto("auto") and is_auto(with_tf32("auto", True))
    assert not is_auto([CUDA, CPU]) and not is_auto(with_tf32([CUDA, CPU], True))


@pytest.mark.parametrize("value", [3, None, [], (CPU, {}), [(CPU, None)], [(CPU,)], [[CPU, {}]]])
def test_invalid_providers_are_refused(value):
    with pytest.raises(ValueError, match="`providers` must be"):
        resolve_providers(value, BOTH)


def test_tf32_must_be_a_bool():
    assert with_tf32("auto", False) == "auto"
    with pytest.raises(ValueError, match=r"`tf32` must be a bool\. Received: 'yes'"):
        with_tf32("auto", "yes")


def test_unavailable_provider_is_refused():
    with pytest.raises(
        ValueError, match=r"`providers` must be 'auto' or a selection from .*'NoProvider'"
    ):
        resolve_providers([CPU, "NoProvider"], BOTH)
