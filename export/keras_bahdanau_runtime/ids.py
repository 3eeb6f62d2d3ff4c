"""Special ids that every vocabulary reserves, and their pieces."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # padding, unknown, begin and end of sentence
SPECIAL = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
