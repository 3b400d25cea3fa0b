"""Mixtures of experts: the names only."""
