"""How the ranks of a pipe x tensor x data layout share what a checkpoint of another such layout holds."""


class model_2d_map:
    """For each (pipe, tensor) place of one data-parallel rank: the old ranks whose files it reads."""

    def __init__(self, pp_degree, tp_degree, cells):
        self.pp_degree, self.tp_degree, self._cells = pp_degree, tp_degree, cells

    def get_data(self, pp_index=None, tp_index=None):
        pipes = range(self.pp_degree) if pp_index is None else [pp_index]
        tensors = range(self.tp_degree) if tp_index is None else [tp_index]
        return [rank for p in pipes for t in tensors for rank in self._cells[p, t]]


class model_3d_desc:
    """A layout. Old ranks count tensor first, then pipe, then data."""

    def __init__(self, pp_degree=1, tp_degree=1, dp_degree=1):
        self.pp_degree, self.tp_degree, self.dp_degree = pp_degree, tp_degree, dp_degree

    def world_size(self):
        return self.pp_degree * self.tp_degree * self.dp_degree

    def get_desc(self):
        return f"pp,tp,dp = ({self.pp_degree},{self.tp_degree},{self.dp_degree})"

    def _misfits(self, target):
        return [f"{name} {getattr(self, name)} cannot become {getattr(target, name)}"
                for name in ("pp_degree", "tp_degree") if getattr(self, name) % getattr(target, name) != 0]

    def can_reshape(self, target):
        """Degrees become smaller by whole factors."""
        return not self._misfits(target)

    def reshape(self, target):
        """One model_2d_map per data-parallel rank of `target`."""
        if self._misfits(target):
            raise ValueError(f"{self.get_desc()} to {target.get_desc()}: " + "; ".join(self._misfits(target)))
        pipes, tensors = self.pp_degree // target.pp_degree, self.tp_degree // target.tp_degree
        stride = self.pp_degree * self.tp_degree
        merged = {(p, t): [d * stride + pp * self.tp_degree + tt
                           for pp in range(p * pipes, (p + 1) * pipes)
                           for tt in range(t * tensors, (t + 1) * tensors)
                           for d in range(self.dp_degree)]
                  for p in range(target.pp_degree) for t in range(target.tp_degree)}
        maps = []
        for d in range(target.dp_degree):
            part = {place: ranks[d * len(ranks) // target.dp_degree:(d + 1) * len(ranks) // target.dp_degree]
                    for place, ranks in merged.items()}
            maps.append(model_2d_map(target.pp_degree, target.tp_degree, part))
        return maps
