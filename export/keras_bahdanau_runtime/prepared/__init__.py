"""Prepared corpora: parallel text of any size as ids in memory-mapped shards.

corpus/
  manifest.json               options, counts, size and hash of every file; written last
  tokenizer.json
  shard-00000.ids.npy         the ids of all pairs, source before target
  shard-00000.offsets.npy     where each source and target begins, and the end of the last
  shard-00000.links.npy       with alignments: (source position, target position) of all pairs
  shard-00000.starts.npy      where the links of each pair begin, and the end of the last
"""
