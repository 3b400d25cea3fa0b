"""State on NVMe: the names only."""

MIN_SWAPPABLE_BYTES = 1024 * 1024
