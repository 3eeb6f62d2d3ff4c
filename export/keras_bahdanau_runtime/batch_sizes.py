"""Sizes of batches, the same for all calls that translate or score texts."""

from dataclasses import dataclass

from keras_bahdanau_runtime.checks import check_positive
from keras_bahdanau_runtime.option_fields import option

# A batch runs until its last sentence ends, which takes longer in larger batches. On a CPU, batches
# of 16 take 0.8 to 0.9 of the time of batches of 32.
BATCH_SIZE = 16
# Memory and time grow with the padded ids. A batch of ordinary sentences has about 500.
BATCH_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """Sizes of batches.

    Raises:
        ValueError: A size is not positive.
    """

    batch_size: int = option(
        BATCH_SIZE, "Maximum number of sentences in a batch.", panel="Batching"
    )
    batch_tokens: int = option(
        BATCH_TOKENS,
        "Maximum number of source tokens in a batch, including padding.",
        panel="Batching",
    )

    def __post_init__(self) -> None:
        check_positive(batch_size=self.batch_size, batch_tokens=self.batch_tokens)
