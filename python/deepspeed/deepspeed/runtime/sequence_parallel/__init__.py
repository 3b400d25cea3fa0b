"""Sequence parallelism for Hugging Face models, and tiles for long sequences."""
