"""Shapes of learning-rate schedules; see `keras_bahdanau.optimizers.WarmupSchedule`."""

SCHEDULES = ("cosine", "inverse-sqrt", "constant")
