"""Adam for parameters in host memory, with DeepSpeed's constructor."""

import collections

import torch

from capstan import _C
from capstan.optimizers import KernelOptimizer


_UNDO_STEPS = 4  # Adam cannot be inverted to the bit: copies are kept, each of the piece and its two moments


class DeepSpeedCPUAdam(KernelOptimizer):

    def __init__(self, model_params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0,
                 amsgrad=False, adamw_mode=True, fp32_optimizer_states=True):
        if amsgrad:
            raise RuntimeError("amsgrad is not supported: remove it, or use torch.optim.Adam")
        self.adam_w_mode, self.fp32_optimizer_states = adamw_mode, fp32_optimizer_states
        self.kind = "adamw" if adamw_mode else "adam"
        super().__init__(model_params, dict(lr=lr, bias_correction=bias_correction, betas=tuple(betas), eps=eps,
                                            weight_decay=weight_decay))
        self._subgroups, self._undo = {}, {}

    def state_dtype(self, param):
        return torch.float32 if self.fp32_optimizer_states else param.dtype

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups if self.engine is None else ():
            for param in group["params"]:
                assert param.device.type == "cpu", "CPUAdam param is on " + str(param.device) + " and must be 'cpu'"
        return super().step(closure)

    # A caller that keeps its own flat pieces updates them one by one, and may take an update back.
    @torch.no_grad()
    def step_subgroup(self, subgroup_id, closure=None):
        param = self.param_groups[0]["params"][0]
        if param.grad is None:
            return None
        state = self._subgroups.setdefault(subgroup_id, {})
        if not state:
            dtype = self.state_dtype(param)
            state.update(step=0, exp_avg=torch.zeros_like(param, dtype=dtype),
                         exp_avg_sq=torch.zeros_like(param, dtype=dtype))
            self.state[subgroup_id] = state
        undo = self._undo.setdefault(subgroup_id, collections.deque(maxlen=_UNDO_STEPS))
        undo.append((param.detach().clone(), state["exp_avg"].clone(), state["exp_avg_sq"].clone()))
        state["step"] += 1
        _C.update_tensor(self.kind, self.hyper_params()[0], state["step"], param.detach(), param.grad.contiguous(),
                         [state["exp_avg"], state["exp_avg_sq"]])
        return None

    @torch.no_grad()
    def rollback_subgroup(self, subgroup_id, closure=None):
        state = self._subgroups.get(subgroup_id, {"step": 0})
        if state["step"] == 0:
            raise RuntimeError(f"Cannot rollback sub_group_id {subgroup_id}: step count is 0")
        if not self._undo[subgroup_id]:
            raise RuntimeError(f"Cannot rollback sub_group_id {subgroup_id}: only {_UNDO_STEPS} steps are kept")
        param = self.param_groups[0]["params"][0]
        saved = self._undo[subgroup_id].pop()
        for target, before in zip((param, state["exp_avg"], state["exp_avg_sq"]), saved):
            target.copy_(before)
        state["step"] -= 1
