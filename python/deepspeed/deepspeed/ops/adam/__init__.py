"""Adam on capstan's kernels."""

from deepspeed.ops.adam.cpu_adam import DeepSpeedCPUAdam  # noqa: F401
from deepspeed.ops.adam.fused_adam import FusedAdam  # noqa: F401
