"""Linear layers of stage 3. Any torch.nn.Linear works sharded here: these names only lead to it."""

import torch
from torch.nn import functional


class LinearModuleForZeroStage3(torch.nn.Linear):
    pass


def zero3_linear_wrap(input, weight, bias=None):
    return functional.linear(input, weight, bias)


class LinearFunctionForZeroStage3(torch.autograd.Function):

    @staticmethod
    def forward(ctx, input, weight, bias=None):
        ctx.save_for_backward(input, weight, bias)
        return functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        input, weight, bias = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        grad_weight = flat.t() @ input.reshape(-1, input.shape[-1]) if ctx.needs_input_grad[1] else None
        grad_bias = flat.sum(0) if bias is not None and ctx.needs_input_grad[2] else None
        return grad @ weight if ctx.needs_input_grad[0] else None, grad_weight, grad_bias
