"""Ids every vocabulary reserves: padding, unknown, begin and end of sentence."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
