"""Inputs of checkpointed layers wait in host memory between forward and backward."""

import collections
import dataclasses
import functools

import torch

from deepspeed.accelerator import get_accelerator

_entered = []  # managers whose context is open, innermost last; the marker serves the innermost


@dataclasses.dataclass
class OffloadStats:
    saved_tensors_seen: int = 0
    marked_tensors: int = 0
    skipped_marked_tensors: int = 0
    offloaded_tensors: int = 0
    restored_tensors: int = 0
    kept_last_tensors: int = 0


class CheckpointHiddenStatesOffload:
    """A context: tensors given to mark() are saved for backward as copies in host memory.

    Inside it, layers of transformers that checkpoint themselves mark their own input. The last `keep_last_count`
    marked tensors stay on the device, because backward needs them at once.
    """

    def __init__(self, use_pin_memory=True, use_streams=True, max_fwd_stash_count=5, min_offload_bytes=1024,
                 keep_last_count=1):
        if keep_last_count < 0:
            raise ValueError(f"keep_last_count must not be negative, got {keep_last_count}")
        self.use_pin_memory, self.non_blocking = use_pin_memory, use_streams
        self.min_offload_bytes, self.keep_last_count = min_offload_bytes, keep_last_count
        self.stats = OffloadStats()
        self._marked, self._keep_last, self._next_id = {}, collections.OrderedDict(), 0
        self._hooks = None

    def mark(self, tensor):
        self._next_id += 1
        self._marked[id(tensor)] = (self._next_id, tensor)
        self.stats.marked_tensors += 1
        self._keep_last[self._next_id] = tensor
        while len(self._keep_last) > self.keep_last_count:
            self._keep_last.popitem(last=False)

    @staticmethod
    def _empty_cpu_like(tensor, pin_memory):
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return get_accelerator().pin_memory(empty) if pin_memory else empty

    def _pack(self, tensor):
        self.stats.saved_tensors_seen += 1
        number, marked = self._marked.pop(id(tensor), (None, None))
        if marked is not tensor:
            return tensor
        if tensor.device.type == "cpu" or tensor.numel() * tensor.element_size() < self.min_offload_bytes:
            self.stats.skipped_marked_tensors += 1
            return tensor
        host = self._empty_cpu_like(tensor, self.use_pin_memory)
        host.copy_(tensor, non_blocking=self.non_blocking)
        self.stats.offloaded_tensors += 1
        return number, host, tensor.device

    def _unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        number, host, device = packed
        kept = self._keep_last.pop(number, None)
        if kept is not None:
            self.stats.kept_last_tensors += 1
            self.stats.offloaded_tensors -= 1
            return kept
        self.stats.restored_tensors += 1
        return host.to(device, non_blocking=self.non_blocking)

    def __enter__(self):
        if self._hooks is not None:
            raise RuntimeError("CheckpointHiddenStatesOffload is not re-entrant")
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        if not _entered:
            _patch_layers()
        _entered.append(self)
        return self

    def __exit__(self, *error):
        _entered.remove(self)
        if not _entered:
            _unpatch_layers()
        self._hooks.__exit__(*error)
        self._hooks = None
        self._marked.clear()
        return False


def _layer_class():
    try:
        from transformers import GradientCheckpointingLayer
    except ImportError:
        return None
    return GradientCheckpointingLayer


def _patch_layers():
    layer = _layer_class()
    if layer is None:
        return
    plain = layer.__call__

    @functools.wraps(plain)
    def call(self, *args, **kwargs):
        states = args[0] if args else kwargs.get("hidden_states")
        if self.gradient_checkpointing and self.training and isinstance(states, torch.Tensor):
            _entered[-1].mark(states)
        return plain(self, *args, **kwargs)

    call.plain = plain
    layer.__call__ = call


def _unpatch_layers():
    layer = _layer_class()
    if layer is not None and hasattr(layer.__call__, "plain"):
        layer.__call__ = layer.__call__.plain


def get_checkpoint_hidden_states_offloading_ctx_manager(**options):
    return CheckpointHiddenStatesOffload(**options)
