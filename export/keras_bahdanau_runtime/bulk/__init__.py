"""Translations of whole files, however large: journals, shards, and many machines."""
