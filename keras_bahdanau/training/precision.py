"""Choice of the dtype policy of a training run."""

import logging
from pathlib import Path

import keras

logger = logging.getLogger("keras_bahdanau")

# Instructions for products of bfloat16 matrices, as Linux names them.
_BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")
# Backends whose training step is faster in bfloat16 on such a processor; see
# benchmarks/HISTORY.md. JAX has not been measured.
_FASTER_BACKENDS = ("tensorflow", "torch")


def resolve_dtype_policy(name, cpu_info=Path("/proc/cpuinfo")):
    """Return a dtype policy, where "auto" is the faster of two on this machine.

    "auto" is "mixed_bfloat16" if the backend trains on a processor with instructions for it (AMX or
    AVX512-BF16), which is then logged, and "float32" otherwise.

    Args:
        name: "auto", or a Keras dtype policy.
        cpu_info: File with the flags of the processor; without it there are none.

    Example:

    >>> resolve_dtype_policy("mixed_bfloat16")
    'mixed_bfloat16'
    """
    if name != "auto":
        return name
    # Keras has no list of devices on torch, but tensors of every backend have a device.
    is_on_cpu = "cpu" in str(keras.ops.zeros(()).device).lower()
    if keras.config.backend() not in _FASTER_BACKENDS or not is_on_cpu or not cpu_info.exists():
        return "float32"
    flags = set(cpu_info.read_text("utf-8").split())
    for flag in _BFLOAT16_FLAGS:
        if flag in flags:
            logger.info("Training in mixed_bfloat16, because this processor has %s.", flag)
            return "mixed_bfloat16"
    return "float32"
