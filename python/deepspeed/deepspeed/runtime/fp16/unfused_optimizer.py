"""The wrapper of 16-bit parameters at stage 0, over any other optimizer."""

from deepspeed.runtime.base_optimizer import ZeROOptimizer


class FP16_UnfusedOptimizer(ZeROOptimizer):
    pass
