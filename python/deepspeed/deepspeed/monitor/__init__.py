"""Curves for TensorBoard, Weights & Biases, Comet, and as CSV files."""
