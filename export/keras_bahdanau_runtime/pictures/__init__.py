"""Pictures of alignments: heatmaps, weights over an image, a page in a browser."""
