"""The wrapper at stage 3, and its memory estimates."""

from deepspeed.runtime import flat_states
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

    def _set_fp32_optimizer_param_groups(self):
        """Until the next call the optimizer's state_dict() shows flat states, one per group, this rank's part."""
        flat_states.show_flat(self._engine, self.optimizer)

    def _clear_fp32_optimizer_param_groups(self):
        flat_states.show_own(self.optimizer)

    @property
    def persistent_parameters(self):
        return [p for p in self._engine.view.params if p.ds_persist]
