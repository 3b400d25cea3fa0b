"""Sequence parallelism for attention of your own."""
