"""Not available yet."""

from deepspeed.inference import InferenceEngine  # noqa: F401
