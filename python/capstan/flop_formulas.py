"""How many floating-point operations one operation of torch takes: torch's own table, and what it lacks."""

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


def _attention(query, key, value, *args, **kwargs):
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(grad_out, query, key, value, *args, **kwargs):
    return sdpa_backward_flop_count(grad_out.shape, query.shape, key.shape, value.shape)


def _dot(a, b, *args, **kwargs):
    return 2 * a.numel()


def _matrix_vector(matrix, vector, *args, **kwargs):
    return 2 * matrix.numel()


def _sum_of_outer(bias, a, b, *args, **kwargs):
    return 2 * a.numel() * b.numel()


def _product(a, b, *args, **kwargs):
    return 2 * a.numel() * b.shape[-1]


def _grouped_product(a, b, *args, **kwargs):
    """Groups are a dimension of both, or pieces of one that they share with the other."""
    return 2 * (a.numel() if b.dim() == 3 else a.shape[-2] * a.shape[-1]) * b.shape[-1]


def _recurrent(x, *weights, **kwargs):
    """Every step of every sequence meets every weight matrix once."""
    tensors = weights[0] if isinstance(weights[0], (list, tuple)) else weights[:4]
    return 2 * (x.numel() // x.shape[-1]) * sum(w.numel() for w in tensors if w.dim() == 2)


def _without_bias(formula):
    return lambda bias, a, b, *args, **kwargs: formula(a, b)


def _twice(formula):
    return lambda *args, **kwargs: 2 * formula(*args, **kwargs)


# Names in torch.ops.aten; those that this torch does not have are passed over.
_MORE = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "dot": _dot,
    "vdot": _dot,
    "mv": _matrix_vector,
    "addmv": _without_bias(_matrix_vector),
    "addr": _sum_of_outer,
    "addbmm": _without_bias(_product),
    "_int_mm": _product,
    "_grouped_mm": _grouped_product,
    "_scaled_grouped_mm": _grouped_product,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _twice(_recurrent),
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _twice(_recurrent),
}


def formulas():
    """{operation: flops(*args, out_val=result, **kwargs)}"""
    found = {}
    for name, formula in _MORE.items():
        op = getattr(torch.ops.aten, name, None)
        if op is not None:
            found[op] = lambda *args, out_val, _formula=formula, **kwargs: _formula(*args, **kwargs)
    return {**found, **flop_registry}
