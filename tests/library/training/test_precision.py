"""The dtype policy "auto" on processors with and without bfloat16 products."""

import keras
import pytest

from keras_bahdanau.training.precision import resolve_dtype_policy


@pytest.mark.parametrize(
    ("flags", "has_bfloat16"),
    [
        ("fma avx2 avx512f avx512_bf16 avx512_vnni", True),
        ("fma avx2 avx512f amx_tile amx_bf16", True),
        ("fma avx2 avx512f avx512_bf16x", False),
    ],
)
def test_auto_is_bfloat16_on_processors_with_its_products(tmp_path, flags, has_bfloat16):
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(f"processor : 0\nflags\t\t: {flags}\nbugs\t\t: none\n")
    is_faster = has_bfloat16 and keras.config.backend() != "jax"
    assert resolve_dtype_policy("auto", cpu_info) == ("mixed_bfloat16" if is_faster else "float32")
    assert resolve_dtype_policy("float32", cpu_info) == "float32"


def test_auto_is_float32_where_the_processor_is_unknown(tmp_path):
    assert resolve_dtype_policy("auto", tmp_path / "absent") == "float32"
