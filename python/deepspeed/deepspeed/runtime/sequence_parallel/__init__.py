"""Sequence parallelism: the names only."""
