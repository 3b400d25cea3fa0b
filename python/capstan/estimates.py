"""How much memory a model takes to train, found without its weights: one forward and backward on fake tensors.

    print(capstan.estimate(model, batch, "ds_config.json", gpus=2, gpu_memory="24GiB"))
"""

import contextlib
import re
import weakref

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from capstan import _C, tensors
from capstan.errors import ConfigError
from capstan.model_view import LISTS, SHORT_NAMES

_DTYPES = {name: dtype for dtype, name in SHORT_NAMES.items()}
_UNITS = {"": 1, "B": 1, **{f"{letter}{end}": 1 << 10 * power for power, letter in enumerate("KMGT", 1)
                            for end in ("", "B", "iB")}}


class Estimate:
    """`rows`: one for each way to place the model, or the one that a configuration says. str() is a table."""

    def __init__(self, rows, machine, title):
        self.rows, self.machine, self.title = rows, machine, title

    def __str__(self):
        text = f"{self.title}\n\n{_C.memory_table(self.rows, self.machine)}"
        return text if len(self.rows) > 1 else f"{text}\n{self.rows[0].phases()}"


class _Tape(TorchDispatchMode):
    """Writes down which storages operations make, and when they go."""

    def __init__(self):
        super().__init__()
        self.events, self._blocks, self._seen = [], 0, weakref.WeakSet()
        self._held, self.in_backward = {}, False

    def ignore(self, tensor):
        self._seen.add(tensor.untyped_storage())

    def _give(self, block):
        if (size := self._held.pop(block, None)) is not None:
            self.events.append(("give", block, size))

    def _take(self, storage):
        block, size = self._blocks, storage.nbytes()
        self._blocks += 1
        self._held[block] = size
        self._seen.add(storage)
        self.events.append(("take", block, size))
        weakref.finalize(storage, self._give, block).atexit = False
        storage._capstan_block = block

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [t.untyped_storage() for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        # With gradients on, it is a forward that is computed again.
        if self.in_backward and func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():
            self._add_in_place(args[0])
        for storage in made:
            if storage not in self._seen:
                self._take(storage)
        return out

    # Autograd adds gradients that meet in place; for fake tensors it does not.
    def _add_in_place(self, tensor):
        block = getattr(tensor.untyped_storage(), "_capstan_block", None) if isinstance(tensor, torch.Tensor) else None
        if block is not None:
            self._give(block)

    def mark(self, kind, index=0):
        self.events.append((kind, index, 0))


def _bytes(given, name):
    if given is None or isinstance(given, int):
        size = given or 0
    else:
        match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", str(given))
        size = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else -1
    if size < 0:
        raise ConfigError(f"{name} is {given!r}, which is not a size", "capstan.estimate",
                          'give bytes, or a text such as "24GiB"')
    return size


@contextlib.contextmanager
def _fake_model(model, mode, dtype):
    """The model's parameters and buffers as fake ones, of the dtype it is trained in; afterwards as they were."""
    memo, changed = {}, []

    def fake(tensor, is_param):
        if id(tensor) not in memo:
            as_is = tensor if isinstance(tensor, FakeTensor) else torch.empty(
                getattr(tensor, "ds_shape", tensor.shape), dtype=tensor.dtype, device="meta")
            kind = dtype if is_param and tensor.is_floating_point() else as_is.dtype
            with mode:
                made = torch.empty(as_is.shape, dtype=kind, device="cpu")
            memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if is_param else made
        return memo[id(tensor)]

    try:
        for module in model.modules():
            for holder, is_param in ((module._parameters, True), (module._buffers, False)):
                for name, tensor in list(holder.items()):
                    if tensor is not None:
                        changed.append((holder, name, tensor))
                        holder[name] = fake(tensor, is_param)
        yield model
    finally:
        for holder, name, tensor in changed:
            holder[name] = tensor


def _fake_batch(batch, mode):
    def fake(value):
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty(value.shape, dtype=value.dtype, device="cpu")
    return pytree.tree_map(fake, batch)


def _call(model, batch):
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def _loss(output):
    """What is differentiated: the loss of a Hugging Face model, else the first output, summed."""
    loss = getattr(output, "loss", None)
    if loss is None:
        loss = [t for t in pytree.tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not loss:
            raise ConfigError("the model's output has no gradient", "capstan.estimate",
                              "give a batch with labels, or a model that trains something")
        loss = loss[0]
    return loss if loss.dim() == 0 else loss.float().sum()


class _Trace:
    """The forward and backward of one micro-batch, as events."""

    def __init__(self, model, config, dtype):
        self.tape, self._open = _Tape(), {}
        names = {id(p): n for n, p in model.named_parameters()}
        self.params = dict(model.named_parameters())
        index = {id(p): i for i, p in enumerate(self.params.values())}
        self.modules = dict(model.named_modules())
        place = {name: i for i, name in enumerate(self.modules)}
        tree = []
        for name, module in self.modules.items():
            own = [index[id(p)] for p in module._parameters.values() if p is not None and id(p) in names]
            kind = f"{type(module).__module__}.{type(module).__qualname__}"
            called = type(module).forward is not nn.Module.forward or "forward" in vars(module)
            tree.append((name, kind, place[name.rpartition(".")[0]] if name else -1,
                         isinstance(module, LISTS), called, own))
        self.units = _C.find_units(config, tree, [p.numel() for p in self.params.values()])

    def _hooks(self):
        handles = []
        for unit, (name, needed) in enumerate(self.units):
            if needed:
                module = self.modules[name]
                handles.append(module.register_forward_pre_hook(self._before(unit), with_kwargs=True))
                # Also where a forward that is computed again stops early.
                handles.append(module.register_forward_hook(self._after(unit), always_call=True))
        for i, param in enumerate(self.params.values()):
            if param.requires_grad:
                handles.append(param.register_post_accumulate_grad_hook(self._arrived(i)))
        return handles

    def _before(self, unit):
        def begin(module, args, kwargs):
            self.tape.mark("begin_use", unit)
            inputs = []
            tensors.visit((args, kwargs), inputs)
            for tensor in inputs:
                if tensor.requires_grad and torch.is_grad_enabled():
                    tensor.register_hook(lambda grad: self._leave(unit))
        return begin

    def _after(self, unit):
        def end(module, args, output):
            self.tape.mark("end_use", unit)
            outputs = []
            tensors.visit(output, outputs)
            for tensor in outputs:
                if tensor.requires_grad and torch.is_grad_enabled():
                    tensor.register_hook(lambda grad: self._enter(unit))
        return end

    def _enter(self, unit):
        if not self._open.get(unit):
            self._open[unit] = True
            self.tape.mark("begin_use", unit)

    def _leave(self, unit):
        if self._open.pop(unit, False):
            self.tape.mark("end_use", unit)

    def _arrived(self, index):
        def take(param):
            self.tape.mark("gradient", index)
            param.grad = None
        return take

    def run(self, model, batch):
        for tensor in [*model.parameters(), *model.buffers()]:
            self.tape.ignore(tensor)
        handles = self._hooks()
        try:
            with self.tape:
                for tensor in pytree.tree_leaves(batch):
                    if isinstance(tensor, torch.Tensor):
                        self.tape._take(tensor.untyped_storage())
                loss = _loss(_call(model, batch))
                self.tape.mark("begin_backward")
                self.tape.in_backward = True
                loss.backward()
                for unit in list(self._open):
                    self._leave(unit)
                del loss
                self.tape.mark("end_backward")
        finally:
            for handle in handles:
                handle.remove()
        return self

    def paper(self, model):
        params = [(name, list(p.shape), p.requires_grad) for name, p in self.params.items()]
        buffers = sum(b.numel() * b.element_size() for b in model.buffers())
        return _C.Paper(params, self.units, self.tape.events, buffers)


def _trace(model, batch, config, dtype):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    training = model.training
    model.train()
    try:
        with _fake_model(model, mode, dtype), mode:
            return _Trace(model, config, dtype).run(model, _fake_batch(batch, mode)).paper(model)
    finally:
        model.train(training)


@contextlib.contextmanager
def _recomputing(model):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()


def _machine(machine, gpus, gpu_memory, host_memory, device):
    found = _C.find_machine(machine) if machine else _C.Machine()
    if not machine:
        found.devices_per_host = gpus
    if gpu_memory is not None:
        found.device_bytes = _bytes(gpu_memory, "gpu_memory")
    if host_memory is not None:
        found.host_bytes = _bytes(host_memory, "host_memory")
    found.on_gpu = device != "cpu"
    return found


def estimate(model, batch, config=None, *, gpus=1, machine=None, gpu_memory=None, host_memory=None, device="cuda",
             recompute=None):
    """An Estimate of training `model` on micro-batches like `batch`.

    `model`: any torch.nn.Module, also on the device meta; or a function that makes one, which is called so that no
    weights are allocated. `batch`: what the model is called with (a dict, a tuple or a tensor), also on meta.
    `config`: as for initialize(); without one, all stages and placements with AdamW. `recompute`: None tries both
    ways where a Hugging Face model has gradient_checkpointing_enable(), else the model is taken as it is.
    """
    if not isinstance(gpus, int) or gpus < 1:
        raise ConfigError(f"gpus is {gpus!r}", "capstan.estimate", "give 1 or more")
    if not isinstance(model, nn.Module):
        with torch.device("meta"):
            model = model()
    first = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    document = config if config is not None else {
        "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {}},
        "bf16": {"enabled": first == torch.bfloat16}, "fp16": {"enabled": first == torch.float16}}
    resolved = _C.resolve_config(_C.read_config(document), world_size=gpus, reads_only=True)
    dtype = _DTYPES.get(resolved.param_dtype, resolved.param_dtype)
    found = _machine(machine, gpus, gpu_memory, host_memory, device)
    can = getattr(model, "supports_gradient_checkpointing", False)
    ways = [recompute] if recompute is not None else [False, True] if can and config is None else [False]
    rows = []
    for again in ways:
        with _recomputing(model) if again and can else contextlib.nullcontext():
            paper = _trace(model, batch, resolved, dtype)
        rows += _C.estimate(paper, resolved, found, gpus, bool(again), config is None)
    rows.sort(key=lambda row: row.stage)
    params = sum(p.numel() for p in model.parameters())
    name = str(dtype).removeprefix("torch.")
    title = f"{type(model).__name__}, {params / 1e9:.3g} B parameters in {name} on {gpus} GPU{'s' if gpus > 1 else ''}"
    return Estimate(rows, found, title)
