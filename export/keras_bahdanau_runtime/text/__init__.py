"""Text files, tokenizer, batches of ids, word alignments and scores."""
