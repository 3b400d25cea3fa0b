"""Adagrad on capstan's kernels."""

from deepspeed.ops.adagrad.cpu_adagrad import DeepSpeedCPUAdagrad  # noqa: F401
