"""The wrapper at stage 3, and its memory estimates."""

from deepspeed.runtime.base_optimizer import ZeROOptimizer
from deepspeed.runtime.zero.estimate import (estimate_zero3_model_states_mem_needs,  # noqa: F401
                                             estimate_zero3_model_states_mem_needs_all_cold,
                                             estimate_zero3_model_states_mem_needs_all_live, model_to_params)
from deepspeed.runtime.zero.parameter_offload import DeepSpeedZeRoOffload


class DeepSpeedZeroOptimizer_Stage3(ZeROOptimizer):

    def __init__(self, engine, optimizer):
        super().__init__(engine, optimizer)
        self.parameter_offload = DeepSpeedZeRoOffload(engine)
        self.module = engine.module

    @property
    def persistent_parameters(self):
        return [p for p in self._engine.view.params if p.ds_persist]
