"""Floating-point operations, parameters and time of every module of a model, in forward, backward and recomputation.

    with capstan.profiler.Profile(model) as profile:
        model(batch).loss.backward()
    print(profile.table())
"""

import bisect
import contextlib
import os
import threading
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from capstan import _C
from capstan.errors import ConfigError
from capstan.params import handle_of

PHASES = ("forward", "backward", "recompute")
_NO_TASK = -1
_OF_A_LEAF = 2**64 - 1  # the sequence number of a node that takes in a parameter's gradient


def numel(param):
    """As many elements as it has when it is whole, wherever they are now."""
    handle = handle_of(param)
    return param.numel() if handle is None else torch.Size(handle.sizes).numel()


def write_report(text, path, warn):
    """To a file, or the screen where there is none. A run does not end because of it."""
    if not path:
        print(text, end="", flush=True)
        return
    try:
        with contextlib.suppress(FileExistsError):
            os.makedirs(os.path.dirname(path) or ".")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        warn(f"the profile was not written: {error.strerror} ({path})")


class ModuleProfile:
    """What one module did, as a node of the tree of modules. A module that two others share has a node below each."""

    def __init__(self, name, module):
        self.name, self.module, self.kind = name, module, type(module).__name__
        self.children, self.calls = [], 0
        self.parameters = sum(numel(p) for p in module.parameters())
        self.own_flops = dict.fromkeys(PHASES, 0)  # without those of the modules inside
        self.own_seconds = dict.fromkeys(PHASES, 0.0)

    def flops(self, phase="forward"):
        return self.own_flops[phase] + sum(child.flops(phase) for child in self.children)

    def macs(self, phase="forward"):
        return self.flops(phase) // 2

    def own_macs(self, phase="forward"):
        return self.own_flops[phase] // 2

    def seconds(self, phase="forward"):
        return self.own_seconds[phase] + sum(child.seconds(phase) for child in self.children)

    def walk(self, depth=0):
        """(node, depth) of this and all below it, as the model lists them."""
        yield self, depth
        for child in self.children:
            yield from child.walk(depth + 1)

    def to_dict(self):
        """For JSON."""
        return {"name": self.name, "class": self.kind, "parameters": self.parameters, "calls": self.calls,
                "flops": {phase: self.flops(phase) for phase in PHASES},
                "seconds": {phase: self.seconds(phase) for phase in PHASES},
                "children": [child.to_dict() for child in self.children]}


def _tree(model):
    """(root, {module: [(path of nodes, root first), ...]})"""
    places, root = {}, ModuleProfile("", model)

    def grow(node, above):
        path = (*above, node)
        places.setdefault(node.module, []).append(path)
        for name, child in node.module._modules.items():
            if child is not None and not any(child is seen.module for seen in path):
                node.children.append(ModuleProfile(name, child))
                grow(node.children[-1], path)

    grow(root, ())
    return root, places


def _common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x is not y), min(len(a), len(b)))


class _Thread:
    """Which modules run on one thread, and which ran when: autograd numbers its nodes in the order they are made."""

    def __init__(self):
        self.stack, self.starts, self.paths, self.task = [], [], [], _NO_TASK

    def switch(self):
        self.starts.append(torch._C._autograd._get_sequence_nr())
        self.paths.append(self.stack[-1] if self.stack else None)

    def made(self, node):
        """The path of the module in whose forward this node of the graph was made."""
        number = node._sequence_nr()
        at = bisect.bisect_right(self.starts, number) - 1
        return self.paths[at] if at >= 0 and number != _OF_A_LEAF else None


class _Counting(TorchDispatchMode):

    def __init__(self, profile):
        from capstan.flop_formulas import formulas  # torch's own are slow to import

        super().__init__()
        self._profile, self._formulas, self._composite = profile, formulas(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        formula = self._formulas.get(func._overloadpacket)
        if formula is None and self._is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        place = self._profile._enter_operation()
        result = func(*args, **kwargs)
        if formula is not None:
            self._profile._count(place, formula(*args, **kwargs, out_val=result))
        return result

    def _is_composite(self, func):
        """Made of others; such come here only in inference mode."""
        known = self._composite.get(func)
        if known is None:
            has = torch._C._dispatch_has_kernel_for_dispatch_key
            known = self._composite[func] = (func is not torch.ops.prim.device.default
                                             and has(func.name(), "CompositeImplicitAutograd"))
        return known


class Profile:
    """Counts while it is open: a context, or start() and stop(). It changes no result. Products of matrices, convolutions and
    attention are counted, by the formulas of torch's FlopCounterMode and some that it lacks; the rest of a model's work is
    limited by memory, not by arithmetic.

    Time is the device's on a GPU. What torch does outside of the model, such as collectives and the optimizer, is nobody's."""

    def __init__(self, model):
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"the model is a {type(model).__name__}", "capstan.profiler.Profile", "give a torch.nn.Module")
        self.model = model
        self._mode, self._handles = None, []
        self.reset()

    def reset(self):
        """Forgets what was counted."""
        self.root, self._places = _tree(self.model)
        self._threads, self._caller = {}, threading.get_ident()
        self._marks, self._now, self._tasks = [], None, {}

    @property
    def running(self):
        return self._mode is not None

    def start(self, ignore=()):
        """`ignore`: classes of modules whose work counts as their parents'."""
        self.stop()
        self.reset()
        for module in self._places:
            if isinstance(module, tuple(ignore)):
                continue
            self._handles.append(module.register_forward_pre_hook(self._begin, prepend=True))
            self._handles.append(module.register_forward_hook(self._end, always_call=True))
        devices = {p.device for p in self.model.parameters()}
        self._device = next((d for d in devices if d.type == "cuda"), torch.device("cpu"))
        self._mode = _Counting(self)
        self._mode.__enter__()
        self._mark(None, "forward")
        return self

    def stop(self):
        if not self.running:
            return
        self._mark(None, "forward")
        mode, self._mode = self._mode, None
        mode.__exit__(None, None, None)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._add_up_times()

    def __enter__(self):
        return self.start()

    def __exit__(self, *error):
        self.stop()

    @property
    def saw_backward(self):
        return any(phase != "forward" for _, _, phase in self._marks)

    def rows(self):
        """One per module, parents first: (depth, name, class, parameters, flops per phase, seconds per phase)."""
        return [(depth, node.name, node.kind, node.parameters, [float(node.flops(phase)) for phase in PHASES],
                 [node.seconds(phase) for phase in PHASES]) for node, depth in self.root.walk()]

    def table(self, depth=-1):
        """A line per module, down to `depth`; -1: all of them."""
        return _C.module_table(self.rows(), depth)

    def report(self, facts=None, depth=-1, top_modules=1, detailed=True):
        """All of it as text. `facts`: a _C.CostFacts, what is known of the run."""
        facts = _C.CostFacts() if facts is None else facts
        facts.forward_s = self.root.seconds("forward")
        if self.root.flops("backward"):
            facts.backward_s = self.root.seconds("backward") + self.root.seconds("recompute")
        return _C.costs_report(self.rows(), facts, depth, top_modules, detailed)

    # Whose work it is

    def _thread(self):
        return self._threads.setdefault(threading.get_ident(), _Thread())

    def _begin(self, module, args):
        task, thread = torch._C._current_graph_task_id(), self._thread()
        if task == _NO_TASK:  # what was computed again on threads of backward is over
            self._threads = {threading.get_ident(): thread}
        thread.task = task
        caller = thread.stack[-1] if thread.stack else ()
        path = max(self._places[module], key=lambda place: _common(place, caller))
        path[-1].calls += task == _NO_TASK
        thread.stack.append(path)
        thread.switch()
        self._mark(path[-1], "forward" if task == _NO_TASK else "recompute")

    def _end(self, module, args, output):
        thread = self._thread()
        if not (thread.stack and thread.stack[-1][-1].module is module):
            return  # it began before us
        thread.stack.pop()
        thread.switch()
        path = thread.stack[-1] if thread.stack else None
        self._mark(path and path[-1], "forward" if torch._C._current_graph_task_id() == _NO_TASK else "recompute")

    def _enter_operation(self):
        """(node, phase) of the operation that is about to run."""
        thread, node = self._thread(), torch._C._current_autograd_node()
        if thread.stack:
            return thread.stack[-1][-1], "forward" if node is None else "recompute"
        if node is None:
            return self.root, "forward"
        path = self._graph_of(thread).made(node)
        place = path and path[-1], "recompute" if self._is_recomputed() else "backward"
        if self._now != place:
            self._mark(*place)
        return place

    def _graph_of(self, thread):
        """The thread that numbered the nodes that run now: who called backward, or, for a graph that was made inside
        backward, the thread that computed it again."""
        caller = self._threads.get(self._caller, thread)
        own = thread is not caller and _NO_TASK < thread.task < torch._C._current_graph_task_id()
        return thread if own else caller

    def _is_recomputed(self):
        """Backward itself builds no graph, unless it began so (create_graph=True)."""
        grad = torch.is_grad_enabled()
        return grad and not self._tasks.setdefault(torch._C._current_graph_task_id(), grad)

    def _count(self, place, flops):
        node, phase = place
        if node is not None:
            node.own_flops[phase] += int(flops)

    # Time

    def _mark(self, node, phase):
        """From here on the time is that module's."""
        self._now = (node, phase)
        if self._device.type == "cuda":
            when = torch.cuda.Event(enable_timing=True)
            when.record(torch.cuda.current_stream(self._device))
        else:
            when = time.perf_counter()
        self._marks.append((when, node, phase))

    def _add_up_times(self):
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for (begin, node, phase), (end, _, _) in zip(self._marks, self._marks[1:]):
            if node is not None:
                node.own_seconds[phase] += end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3
        self._marks = []
