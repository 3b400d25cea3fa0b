"""Tensor parallelism: the names only."""
