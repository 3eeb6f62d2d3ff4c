"""Translation of whole files of any size, with resumption and shards."""
