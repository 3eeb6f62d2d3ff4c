"""Corpora of any size on their way from text to a trainer: ids in memory-mapped shards.

corpus/
  manifest.json               options, counts, size and hash of every file; written last
  tokenizer.json
  shard-00000.ids.npy         the ids of one pair after the other, source before target
  shard-00000.offsets.npy     where each source and target begins in them, the last ends
  shard-00000.links.npy       with alignments: (source place, target place), one after the other
  shard-00000.starts.npy      where each pair's links begin, and where the last end
"""
