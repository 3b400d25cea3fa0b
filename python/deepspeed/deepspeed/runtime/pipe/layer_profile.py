"""Time and memory of a model's layers, measured one after another, for partition_method="profile"."""

import copy
import functools
import time

import torch
from torch import nn

from capstan import _C, tensors
from deepspeed.runtime.pipe.layer_specs import LayerSpec, TiedLayerSpec, type_name

_RUNS = 3  # of which the fastest counts
_STATE_BYTES = 12  # of a trained element: master copy and two moments


def _callable_of(layer):
    """A layer of our own to run: forward may change what a module keeps."""
    if isinstance(layer, LayerSpec):
        module = layer.build()
        tied = isinstance(layer, TiedLayerSpec) and layer.forward_fn is not None
        return module, functools.partial(layer.forward_fn, module) if tied else module
    module = copy.deepcopy(layer) if isinstance(layer, nn.Module) else None
    return module, module or layer


def _as_leaf(x):
    return x.detach().clone().requires_grad_(x.is_floating_point())


def _forward_and_backward(call, x):
    found = []
    output = call(tensors.replace(x, _as_leaf))
    tensors.visit(output, found)
    ends = [each for each in found if each.requires_grad]
    torch.autograd.backward(ends, [torch.ones_like(each) for each in ends])
    return output


def _saved_bytes(call, x, params):
    """What forward keeps for backward, without the parameters."""
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in params:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = call(tensors.replace(x, _as_leaf))  # alive until all is counted: its memory is not used again
    return sum(kept.values()), output


def measured(layers, sample):
    """A PipelineLayer for each layer; the first is given `sample`, the inputs of one micro-batch."""
    found, x = [], sample
    with torch.random.fork_rng():
        for layer in layers:
            module, call = _callable_of(layer)
            params = [] if module is None else list(module.parameters())
            trained = sum(p.numel() for p in params if p.requires_grad)
            saved, output = _saved_bytes(call, x, {p.untyped_storage().data_ptr() for p in params})
            seconds = []
            for _ in range(_RUNS):
                begin = time.perf_counter()
                _forward_and_backward(call, x)
                seconds.append(time.perf_counter() - begin)
            own = sum(p.numel() * p.element_size() for p in params)
            grads = sum(p.numel() * p.element_size() for p in params if p.requires_grad)
            found.append(_C.PipelineLayer(type_name(layer), trained, min(seconds), saved, own + grads + _STATE_BYTES * trained))
            x = tensors.replace(output, torch.detach)
    return found
