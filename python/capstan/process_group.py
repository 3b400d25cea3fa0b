"""The ranks of a job: torch.distributed's group, as the C++ core takes it."""

import itertools
import os
import sys
import weakref

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401  imported later, its default arguments keep the group for ever

from capstan import _C
from capstan.errors import ConfigError
from capstan.log_place import launcher_names_ranks

_made = itertools.count()
_used = weakref.WeakSet()  # groups of torch.distributed that ours are made over, while they last
_parts = weakref.WeakKeyDictionary()  # group of torch.distributed: {its parts, as text: the one we are in}
_cores = weakref.WeakKeyDictionary()  # group of torch.distributed: {kind of device: the core's group over it}
_axes = weakref.WeakKeyDictionary()  # group of torch.distributed: {axis and sizes of a mesh over it: the one we are in}
os.register_at_fork(after_in_child=_used.clear)


def set_rank_variables(port=29500):
    """Sets the variables that torch.distributed reads from those of mpirun or srun, where only these are there."""
    found = _C.rank_env()
    if found.launcher in ("", "environment", "torchrun"):
        return
    for name, value in (("RANK", found.rank), ("WORLD_SIZE", found.world_size), ("LOCAL_RANK", found.local_rank)):
        os.environ[name] = str(value)
    os.environ.setdefault("MASTER_ADDR", found.master_addr)
    os.environ.setdefault("MASTER_PORT", str(found.master_port or port))


def init_distributed(backend=None, timeout=None, init_method=None, rank=-1, world_size=-1, discover=True):
    """Joins the ranks that a launcher started, unless somebody has done so already; without one, a world of one.

    `discover`: ranks of mpirun and srun are found by their variables, too.
    """
    if dist.is_initialized():
        return
    if discover and rank < 0:
        set_rank_variables()
    if backend is None:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    options = {} if timeout is None else {"timeout": timeout}
    if init_method is not None:
        options["init_method"] = init_method
    if rank >= 0:
        options["rank"] = rank
    if world_size > 0:
        options["world_size"] = world_size
    alone = "RANK" not in os.environ and "WORLD_SIZE" not in os.environ and not options.keys() - {"timeout"}
    if alone:
        options.update(store=dist.HashStore(), rank=0, world_size=1)
    hook = sys.excepthook
    dist.init_process_group(backend, **options)
    if launcher_names_ranks():
        sys.excepthook = hook  # torch's puts the rank before every line once more
    _used.add(dist.group.WORLD)


def leave():
    """Ends torch.distributed's groups at a program's end, where it has not done so and one of our engines used them:
    Gloo's threads would go on while the interpreter ends, which ends the program by a signal now and then.

    Over NCCL they do not, and ending a group there may wait for other ranks.
    """
    if dist.is_initialized() and len(_used) > 0 and dist.get_backend() == "gloo":
        dist.destroy_process_group()


def travel_device(process_group=None):
    """Where tensors must be for this group's collectives: the host, where it can; else this rank's accelerator."""
    group = dist.group.WORLD if process_group is None else process_group
    if torch.device("cpu") in group._device_types:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def core_group(process_group=None, device="cpu", config=None, beside=None):
    """A _C.Group over a group of torch.distributed (default: all ranks), which a configuration may say more about.

    `beside`: another one of this rank, which is told of this one's operations too.
    """
    group = dist.group.WORLD if process_group is None else process_group
    _used.add(group)
    backend = group._get_backend(torch.device(device))
    known = getattr(backend.options, "_timeout", None)
    seconds = None if known is None else known.total_seconds()
    ordered = True
    if config is not None:
        _check_backend(config.value("capstan.backend"), backend.name())
        ordered = config.value("capstan.reduce_in_rank_order")
        if config.given("capstan.timeout_s"):
            seconds = config.value("capstan.timeout_s")
    # Engines are made in the same order on all ranks, so this number names the same group everywhere.
    name = f"{group.group_name}#{next(_made)} of {group.size()} ranks"
    return _C.Group(backend, name, seconds, dist.distributed_c10d._get_default_store(), ordered, beside)


def part_of(process_group, parts):
    """Of lists that hold every rank of a group once: the group of the list that this rank is in. All ranks call it alike."""
    group = dist.group.WORLD if process_group is None else process_group
    ranks = dist.get_process_group_ranks(group)
    made = _parts.setdefault(group, {})
    key = str(parts)
    if key not in made:  # engines of one job share them: each is a connection between ranks
        backend = dist.get_backend(group)
        for part in parts:
            one = dist.new_group([ranks[r] for r in part], backend=backend)
            if group.rank() in part:
                made[key] = one
    return made[key]


def core_of(group, device):
    """The core's group over one of torch.distributed, made once; for layers, not for engines."""
    kept = _cores.setdefault(group, {})
    kind = torch.device(device).type
    if kind not in kept:
        kept[kind] = core_group(group, device)
    return kept[kind]


def axis_group(axis, among=None, **sizes):
    """In a mesh of `sizes` over a group: the ranks that differ from this one on `axis` alone. Collective; not one of the
    engine's, for its collectives have an order of their own."""
    whole = dist.group.WORLD if among is None else among
    made = _axes.setdefault(whole, {})
    key = (axis, *sorted(sizes.items()))
    if key not in made:
        ranks = dist.get_process_group_ranks(whole)
        for part in _C.Mesh(whole.size(), **sizes).groups([axis]):
            group = dist.new_group([ranks[r] for r in part], backend=dist.get_backend(whole))
            if whole.rank() in part:
                made[key] = group
    return made[key]


def parts_maker(process_group, device, config, beside):
    """A function of such lists, which gives our group over that of torch.distributed."""
    return lambda parts: core_group(part_of(process_group, parts), device, config, beside)


def _check_backend(wanted, used):
    if wanted is not None and wanted != used:
        raise ConfigError(f"the ranks communicate over {used}, not {wanted}", "capstan.backend",
                          "in Python the group of ranks belongs to torch.distributed: name the backend in init_process_group(), "
                          "and remove this key")
