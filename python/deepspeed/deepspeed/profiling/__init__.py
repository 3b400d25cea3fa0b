"""Where a model's time and operations go."""
