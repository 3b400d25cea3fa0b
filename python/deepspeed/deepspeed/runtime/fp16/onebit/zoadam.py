"""Not available yet."""

from deepspeed.runtime.fp16.onebit import ZeroOneAdam  # noqa: F401
