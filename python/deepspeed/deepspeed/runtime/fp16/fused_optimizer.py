"""The wrapper of 16-bit parameters at stage 0, over one of our own optimizers."""

from deepspeed.runtime.base_optimizer import ZeROOptimizer


class FP16_Optimizer(ZeROOptimizer):
    pass
