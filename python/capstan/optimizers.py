"""Optimizers whose arithmetic is capstan's own kernels, and how any optimizer meets an engine."""

import math

import torch

from capstan import _C
from capstan.errors import ConfigError
from capstan.params import handle_of


class KernelOptimizer(torch.optim.Optimizer):
    """An optimizer over capstan's kernels.

    In an engine its groups hold the hyper-parameters and the engine holds the state, sharded. On its own it
    updates CPU tensors like any optimizer of torch.

        >>> weight = torch.nn.Parameter(torch.ones(4))
        >>> optimizer = AdamW([weight], lr=0.1)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> round(weight[0].item(), 6)
        0.9
    """

    kind = None  # a name of the C++ side

    def __init__(self, params, defaults):
        self.engine = None
        super().__init__(params, defaults)

    def hyper_params(self):
        """The groups without their parameters."""
        return [{key: value for key, value in group.items() if key not in ("params", "step")}
                for group in self.param_groups]

    def bind(self, engine):
        """`engine` keeps the state from here on, also what this has from steps or a load before; state[p] shows this rank's
        part of it. Collective where there is such state."""
        before = {} if self.engine is not None else {param: state for param, state in self.state.items() if state}
        self.engine = engine
        self.state.clear()
        for group, hyper in zip(self.param_groups, self.hyper_params()):
            names = _C.state_names(self.kind, hyper)
            for param in filter(lambda p: p.requires_grad, group["params"]):
                index = engine.view.index[id(param)]
                for name in names:
                    if name in before.get(param, {}):
                        engine.core.write(index, name, before[param][name])
                self.state[param] = {name: engine.core.local(index, name) for name in names}
        if before:
            engine.core.optimizer_steps = max(int(state.get("step", 0)) for state in before.values())
        self.note_steps(engine.core.optimizer_steps)

    def note_steps(self, applied):
        """How many updates the engine has applied."""
        for shown in self.state.values():
            shown["step"] = applied
        for group in self.param_groups:
            group["step"] = applied
        self._opt_called = applied > 0  # torch's schedules warn where the optimizer has not stepped before them

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, hyper in zip(self.param_groups, self.hyper_params()):
            for param in group["params"]:
                if param.grad is None:
                    continue
                if param.grad.is_sparse:
                    raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
                state = self.state[param]
                names = _C.state_names(self.kind, hyper)
                if not state:
                    start = hyper.get("initial_accumulator_value", 0)
                    state["step"] = 0
                    for name in names:
                        state[name] = torch.full_like(param, start, dtype=self.state_dtype(param))
                state["step"] += 1
                _C.update_tensor(self.kind, hyper, state["step"], param.detach(), param.grad.contiguous(),
                                 [state[name] for name in names])
                group["step"] = state["step"]
        return loss

    def state_dtype(self, param):
        return torch.float32


class AdamW(KernelOptimizer):
    kind = "adamw"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, bias_correction=True):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                                      bias_correction=bias_correction))


class Adam(AdamW):
    kind = "adam"


class Lion(KernelOptimizer):
    kind = "lion"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))


class Adagrad(KernelOptimizer):
    kind = "adagrad"

    def __init__(self, params, lr=1e-2, eps=1e-10, weight_decay=0.0, lr_decay=0.0, initial_accumulator_value=0.0):
        super().__init__(params, dict(lr=lr, eps=eps, weight_decay=weight_decay, lr_decay=lr_decay,
                                      initial_accumulator_value=initial_accumulator_value))


class Lamb(KernelOptimizer):
    kind = "lamb"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, bias_correction=True,
                 max_coeff=10.0, min_coeff=0.01, eps_inside_sqrt=False):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                                      bias_correction=bias_correction, max_coeff=max_coeff, min_coeff=min_coeff,
                                      eps_inside_sqrt=eps_inside_sqrt))


def check_belongs(optimizer, view):
    """Raises ConfigError that names every parameter of the optimizer which is not the model's."""
    strangers = [f"group {g}, parameter {i} of shape {list(getattr(p, 'ds_shape', p.shape))}"
                 for g, group in enumerate(optimizer.param_groups)
                 for i, p in enumerate(group["params"]) if id(p) not in view.index]
    if strangers:
        raise ConfigError(f"the optimizer holds {len(strangers)} parameters that do not belong to the model: "
                          + "; ".join(strangers[:10]), "optimizer",
                          "build the optimizer from model.parameters() of this model, after the last change to its modules (a "
                          "copy, a second model or a resized layer has other parameters)")


def core_optimizer(optimizer, view):
    """What the C++ engine is given for this optimizer: kernels with groups, or a function that makes its step."""
    if optimizer is None:
        return None
    check_belongs(optimizer, view)
    if isinstance(optimizer, KernelOptimizer):
        names = [[view.names[view.index[id(p)]] for p in group["params"]] for group in optimizer.param_groups]
        return optimizer.kind, list(zip(optimizer.hyper_params(), names))
    numels = [math.prod(getattr(handle_of(param), "sizes", param.shape)) for param in view.params]
    return lambda pieces: PieceOptimizer(optimizer, view, pieces, numels)


def group_names(optimizer, view):
    """The names that files have for the parameters which each group trains. Before core_optimizer(), which puts pieces in
    their place."""
    if optimizer is None:
        return []
    return [list(dict.fromkeys(view.stored_names[view.index[id(p)]] for p in group["params"]
                               if id(p) in view.index and p.requires_grad)) for group in optimizer.param_groups]


_NUMBERS = ("lr", "eps", "weight_decay", "momentum")  # under the same names in groups and in checkpoints
_BETAS = ("beta1", "beta2")


def stored_groups(optimizer, names_of_groups):
    """(names, numbers) of each group, as every reader of a checkpoint understands them."""
    stored = []
    for names, group in zip(names_of_groups, [] if optimizer is None else optimizer.param_groups):
        numbers = {key: float(group[key]) for key in _NUMBERS if key in group}
        numbers.update(zip(_BETAS, map(float, group.get("betas", ()))))
        if names:
            stored.append((names, numbers))
    return stored


def groups_of(stored, optimizer, names_of_groups):
    """Values for each group of the optimizer from a StoredCheckpoint that no Python engine wrote."""
    saved = {name: numbers for names, numbers in stored.param_groups for name in names}
    result = []
    for names, group in zip(names_of_groups, [] if optimizer is None else optimizer.param_groups):
        numbers = dict(saved.get(names[0], {})) if names else {}
        if all(key in numbers for key in _BETAS):
            numbers["betas"] = tuple(numbers[key] for key in _BETAS)
        result.append({key: value for key, value in numbers.items() if key in group})
    return result


def _cut(state, numel, piece, begin):
    """A parameter's state as it is for a piece that begins at that element."""
    cut = {}
    for name, value in state.items():
        if not torch.is_tensor(value) or value.dim() == 0:
            cut[name] = value
        elif value.numel() == numel:
            part = value.reshape(-1)[begin:begin + piece.numel()].to(piece.device, copy=True)
            cut[name] = (part.to(piece.dtype) if part.is_floating_point() else part).view(piece.shape)
        elif value.numel() == 1:
            cut[name] = value
        else:
            raise ConfigError(f"the optimizer has a state '{name}' of {value.numel()} elements for a parameter of {numel}: it "
                              "cannot be sharded over the ranks", "optimizer",
                              "pass a new optimizer, or one that keeps one value per element")
    return cut


def shared_values(optimizer, whole=True):
    """What the ranks' optimizers must have alike, as (name, text): the class and every plain value of its groups, and
    their sizes where each rank has the `whole` model."""
    if optimizer is None:
        return []
    values = [("optimizer", type(optimizer).__name__)]
    for index, group in enumerate(optimizer.param_groups):
        values += [(f"optimizer.param_groups[{index}]", f"{len(group['params'])} parameters")] if whole else []
        values += [(f"optimizer.param_groups[{index}][{key!r}]", repr(value)) for key, value in sorted(group.items())
                   if isinstance(value, (bool, int, float, str, tuple)) or value is None]
    return values


_ARRAY = "[0]"  # marks a counter that the optimizer keeps as a tensor of one element


class PieceOptimizer:
    """Any torch optimizer on pieces of the master copy, which take the place of the model's parameters."""

    def __init__(self, optimizer, view, pieces, numels):
        self._optimizer, self._numels = optimizer, numels
        self._pieces = [tensor for _, tensor, _ in pieces]
        self.kind = f"torch.{type(optimizer).__name__.lower()}"
        given = {index: (tensor, begin) for index, tensor, begin in pieces}
        optimizer.capstan_pieces = {}
        for group in optimizer.param_groups:
            group["params"] = list(filter(lambda piece: piece is not None,
                                          (self._take(p, view.index[id(p)], given) for p in group["params"])))

    def _take(self, param, index, given):
        """What the optimizer updates instead of this parameter; its state, if there is some, is cut alike."""
        piece, begin = given.get(index, (None, 0))
        if piece is param:
            self._optimizer.capstan_pieces[index] = piece
            return piece
        state = self._optimizer.state.pop(param, None)
        if piece is None:
            return None  # frozen, or on other ranks only
        piece.requires_grad_(True)
        if state:
            self._optimizer.state[piece] = _cut(state, self._numels[index], piece, begin)
        self._optimizer.capstan_pieces[index] = piece
        return piece

    def step(self):
        self._optimizer.step()

    # What checkpoints ask for.

    def tensors(self, piece):
        values = self._pieces[piece]
        state = self._optimizer.state.get(values, {})
        return [(name, value) for name, value in state.items()
                if isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() == values.numel()]

    def scalars(self):
        for piece, values in enumerate(self._pieces):
            columns = {name for name, _ in self.tensors(piece)}
            found = {name + _ARRAY * (torch.is_tensor(value) and value.dim() > 0): float(value)
                     for name, value in self._optimizer.state.get(values, {}).items()
                     if isinstance(value, (int, float)) or (torch.is_tensor(value) and value.numel() == 1)
                     if name not in columns}
            if found:
                return found
        return {}

    def make(self, names, scalars):
        in_groups = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        for values in self._pieces:
            if id(values) not in in_groups:
                continue
            state = self._optimizer.state[values]
            for name in names:
                state.setdefault(name, torch.zeros_like(values))
            for name, value in scalars.items():  # torch's own keep the step as a tensor
                if name.endswith(_ARRAY):
                    state[name.removesuffix(_ARRAY)] = values.new_tensor([value])
                else:
                    plain = int(value) if float(value).is_integer() else value
                    state[name] = torch.tensor(float(value)) if name == "step" else plain
