"""The wrapper of bf16 parameters at stage 1."""

from deepspeed.runtime.base_optimizer import ZeROOptimizer


class BF16_Optimizer(ZeROOptimizer):
    pass
