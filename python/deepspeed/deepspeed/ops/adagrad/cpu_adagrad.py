"""Adagrad for parameters in host memory, with DeepSpeed's constructor."""

from capstan.optimizers import Adagrad


class DeepSpeedCPUAdagrad(Adagrad):
    """`adamw_mode` is accepted because Accelerate sends it to every CPU optimizer."""

    def __init__(self, model_params, lr=1e-2, eps=1e-10, weight_decay=0, amsgrad=False, fp32_optimizer_states=True,
                 adamw_mode=None, lr_decay=0.0, initial_accumulator_value=0.0):
        if amsgrad:
            raise RuntimeError("Adagrad has no amsgrad: remove that argument")
        super().__init__(model_params, lr=lr, eps=eps, weight_decay=weight_decay, lr_decay=lr_decay,
                         initial_accumulator_value=initial_accumulator_value)
        self.fp32_optimizer_states = fp32_optimizer_states
