"""Adam and AdamW with DeepSpeed's constructor."""

from capstan.optimizers import KernelOptimizer


class FusedAdam(KernelOptimizer):

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True,
                 weight_decay=0.0, amsgrad=False, set_grad_none=True):
        if amsgrad:
            raise RuntimeError("amsgrad is not supported: remove it, or use torch.optim.Adam")
        self.adam_w_mode, self.set_grad_none = 1 if adam_w_mode else 0, set_grad_none
        self.kind = "adamw" if adam_w_mode else "adam"
        super().__init__(params, dict(lr=lr, bias_correction=bias_correction, betas=tuple(betas), eps=eps,
                                      weight_decay=weight_decay))
