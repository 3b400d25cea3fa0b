"""Recomputation of activations in backward."""
