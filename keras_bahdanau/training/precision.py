"""Choice of the dtype policy of training steps."""

import logging
from pathlib import Path

import keras

from keras_bahdanau.distribution import broadcast_from_rank0

logger = logging.getLogger("keras_bahdanau")

# Instructions for products of bfloat16 matrices, as Linux names them.
_BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})
# Backends whose training step is faster in bfloat16 on such a processor; see
# benchmarks/HISTORY.md. JAX has not been measured.
_FASTER_BACKENDS = ("tensorflow", "torch")


def resolve_dtype_policy(name, cpu_info=Path("/proc/cpuinfo")):
    """Return the dtype policy of training steps, where "auto" is the faster of two.

    "auto" is "mixed_bfloat16" if the backend trains on a processor with instructions for it (AMX or
    AVX512-BF16), which is then logged, and "float32" otherwise. With several processes, the
    processor of the first one decides.

    Args:
        name: "auto", or a Keras dtype policy.
        cpu_info: File with the flags of the processor; without it there are none.

    Example:

    >>> resolve_dtype_policy("mixed_bfloat16")
    'mixed_bfloat16'
    """
    if name != "auto":
        return name
    if not broadcast_from_rank0(_is_faster_in_bfloat16(cpu_info)):
        return "float32"
    logger.info(
        "Training steps compute in mixed_bfloat16, because the processor has instructions for it."
    )
    return "mixed_bfloat16"


def _is_faster_in_bfloat16(cpu_info):
    # Keras has no list of devices on torch, but tensors of every backend have a device.
    is_on_cpu = "cpu" in str(keras.ops.zeros(()).device).lower()
    if keras.config.backend() not in _FASTER_BACKENDS or not is_on_cpu or not cpu_info.exists():
        return False
    return not _BFLOAT16_FLAGS.isdisjoint(cpu_info.read_text("utf-8").split())
