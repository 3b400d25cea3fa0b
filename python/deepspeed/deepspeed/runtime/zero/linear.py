"""Linear layers of stage 3. Any torch.nn.Linear works sharded here: these are for code that calls them by name."""

import torch
from torch.nn import functional


class LinearModuleForZeroStage3(torch.nn.Linear):
    pass


class LinearFunctionForZeroStage3(torch.autograd.Function):
    """functional.linear that keeps its very inputs for backward; torch.func's transforms go through it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input, weight, bias=None):
        return functional.linear(input, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx._fwd_used_autocast = torch.is_autocast_enabled(output.device.type)
        ctx._dtype = output.dtype

    @staticmethod
    def backward(ctx, grad):
        """In the precision that forward computed in, whatever surrounds backward."""
        input, weight, bias = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            flat = grad.reshape(-1, grad.shape[-1])
            rows = input.to(ctx._dtype).reshape(-1, input.shape[-1])
            needs_input, needs_weight, needs_bias = ctx.needs_input_grad
            grad_input = (grad @ weight.to(ctx._dtype)).to(input.dtype) if needs_input else None
            grad_weight = (flat.t() @ rows).to(weight.dtype) if needs_weight else None
            grad_bias = flat.sum(0).to(bias.dtype) if bias is not None and needs_bias else None
        return grad_input, grad_weight, grad_bias


def zero3_linear_wrap(input, weight, bias=None):
    return LinearFunctionForZeroStage3.apply(input, weight, bias)
