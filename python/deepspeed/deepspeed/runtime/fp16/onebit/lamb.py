"""Not available yet."""

from deepspeed.runtime.fp16.onebit import OnebitLamb  # noqa: F401
