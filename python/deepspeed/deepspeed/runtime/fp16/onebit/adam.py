"""Not available yet."""

from deepspeed.runtime.fp16.onebit import OnebitAdam  # noqa: F401
