"""Finds out whether anybody writes into sharded parameters while they are whole only to be read."""

import warnings

import torch

from capstan.errors import ConfigError


class WrittenInPlace(ConfigError, RuntimeError):
    """A sharded parameter was changed by ranks whose values nobody takes over."""


def _sum_of_bits(param):
    """A number on the parameter's device that changes with its values, whichever way they are written."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        raw = param.data.reshape(-1).view(torch.uint8)
        even = raw.numel() // 8 * 8
        return raw[:even].view(torch.int64).sum() + raw[even:].sum()


class _Seen:
    """One parameter, as it was when it became whole."""

    def __init__(self, param, handle):
        self._param, self.handle = param, handle
        self._changes, self._version, self._sum = handle.changes, param._version, _sum_of_bits(param)

    def written(self):
        """A tensor that is true if it was written to. What its engine changed since (a step, a load) is not meant."""
        changed = self._param._version != self._version
        if self.handle.changes != self._changes:
            return torch.tensor(False)
        return torch.tensor(True) if changed else self._sum.to(self._param.device) != _sum_of_bits(self._param)


class Writes:
    """From its construction to found(), which is collective."""

    def __init__(self, params, handles):
        self._seen = [_Seen(param, handle) for param, handle in zip(params, handles)]

    def found(self):
        """The same on all ranks."""
        groups = [seen.handle.group for seen in self._seen]
        for group in dict.fromkeys(group for group in groups if group is not None):  # each once, in order
            mine = [seen for seen, its in zip(self._seen, groups) if its is group]
            travel = mine[0].handle.travel
            flag = torch.stack([seen.written().to(travel) for seen in mine]).any()
            if group.any(flag) if group.size > 1 else flag:
                return True
        return False

    def refuse(self):
        """Raises, on all ranks alike. Copies that stay whole between uses are made anew from the shards first."""
        engines = {seen.handle.engine for seen in self._seen if hasattr(seen.handle, "engine")}
        for engine in engines:
            engine.core.give_back()
        error = WrittenInPlace(
            "in-place modification of a sharded parameter that was gathered without a modifier rank: the ranks would end up "
            "with different values, or lose the new ones", "gathered()",
            "pass modifier_rank=RANK, whose values are then sent to all ranks, or write to a copy; code that writes only temporarily, "
            "such as merging adapters, needs \"enable_sanity_checks\": false in zero_optimization")
        if not engines or not all(engine.core_config.may_write_gathered for engine in engines):
            raise error
        warnings.warn(f"{error.what}; enable_sanity_checks is false", stacklevel=4)
