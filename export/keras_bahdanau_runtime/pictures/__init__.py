"""Figures and web pages of alignments."""
