"""The wrapper at stages 1 and 2, and the memory estimates of stage 2."""

from deepspeed.runtime.base_optimizer import ZeROOptimizer
from deepspeed.runtime.zero.estimate import (estimate_zero2_model_states_mem_needs,  # noqa: F401
                                             estimate_zero2_model_states_mem_needs_all_cold,
                                             estimate_zero2_model_states_mem_needs_all_live)


class DeepSpeedZeroOptimizer(ZeROOptimizer):

    @property
    def partition_gradients(self):
        return self._engine.zero_optimization_partition_gradients()
