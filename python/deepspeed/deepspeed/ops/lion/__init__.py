"""Lion on capstan's kernels."""

from capstan.optimizers import Lion


class FusedLion(Lion):

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0, set_grad_none=True):
        super().__init__(params, lr=lr, betas=tuple(betas), weight_decay=weight_decay)


class DeepSpeedCPULion(Lion):
    """`adamw_mode` is accepted because Accelerate sends it to every CPU optimizer."""

    def __init__(self, model_params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0, fp32_optimizer_states=True,
                 adamw_mode=None):
        super().__init__(model_params, lr=lr, betas=tuple(betas), weight_decay=weight_decay)
        self.fp32_optimizer_states = fp32_optimizer_states
