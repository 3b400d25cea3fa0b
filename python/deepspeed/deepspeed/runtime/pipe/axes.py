"""Grids of ranks with named axes, and which of their ranks belong together."""

import itertools
import math
from collections import namedtuple


class ProcessTopology:
    """Ranks numbered over `axes` of lengths `dims`, the last axis fastest."""

    def __init__(self, axes, dims):
        assert len(axes) == len(dims), f"{len(axes)} axes, but {len(dims)} lengths"
        self.axes, self.dims = list(axes), list(dims)
        self.ProcessCoord = namedtuple("ProcessCoord", self.axes)

    def get_rank(self, **coord_kwargs):
        """The rank at a place, which names every axis."""
        if set(coord_kwargs) != set(self.axes):
            raise ValueError(f"get_rank() needs a number for each of the axes {self.axes}; it was given {coord_kwargs}")
        rank = 0
        for axis, length in zip(self.axes, self.dims):
            place = coord_kwargs[axis]
            assert 0 <= place < length, f"{axis}={place} is outside of a topology with {length} on that axis"
            rank = rank * length + place
        return rank

    def get_coord(self, rank):
        """Where a rank stands, by axis."""
        if not 0 <= rank < self.world_size():
            raise ValueError(f"rank {rank} is not in a topology of {self.world_size()} ranks")
        places = []
        for length in reversed(self.dims):
            rank, place = divmod(rank, length)
            places.append(place)
        return self.ProcessCoord(*reversed(places))

    def get_axis_names(self):
        return self.axes

    def get_dim(self, axis):
        """The length of an axis; 0 where there is none of that name."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_rank_repr(self, rank, omit_axes=("data", "pipe"), inner_sep="_", outer_sep="-"):
        """A rank's place as a part of a file's name: "model_01"."""
        place = self.get_coord(rank)
        return outer_sep.join(f"{axis}{inner_sep}{getattr(place, axis):02d}" for axis in self.axes if axis not in omit_axes)

    def get_axis_comm_lists(self, axis):
        """The lists of ranks that differ on this axis only; none where there is no such axis."""
        if axis not in self.axes:
            return []
        others = [name for name in self.axes if name != axis]
        places = itertools.product(*(range(self.get_dim(name)) for name in others))
        return [self.filter_match(**dict(zip(others, place))) for place in places]

    def filter_match(self, **filter_kwargs):
        """The ranks at these places on the axes that are named."""
        def fits(rank):
            place = self.get_coord(rank)
            return all(getattr(place, axis) == value for axis, value in filter_kwargs.items())

        return [rank for rank in range(self.world_size()) if fits(rank)]

    def get_axis_list(self, axis, idx):
        """The ranks that stand at `idx` on an axis."""
        return self.filter_match(**{axis: idx})

    def world_size(self):
        return math.prod(self.dims)

    def __str__(self):
        return str({self.get_coord(rank): rank for rank in range(self.world_size())})


class PipeDataParallelTopology(ProcessTopology):
    """Stages of a pipeline outside, data inside: neighbours reduce gradients."""

    def __init__(self, num_pp, num_dp):
        super().__init__(axes=["pipe", "data"], dims=[num_pp, num_dp])


class PipeModelDataParallelTopology(ProcessTopology):
    """Stages, data, and inside them the ranks that share a layer."""

    def __init__(self, num_pp, num_mp, num_dp):
        super().__init__(axes=["pipe", "data", "model"], dims=[num_pp, num_dp, num_mp])


def _prime_factors(N):
    if N <= 0:
        raise ValueError(f"{N} has no prime factors: it is not positive")
    found, factor = [], 2
    while N > 1:
        while N % factor == 0:
            found.append(factor)
            N //= factor
        factor += 1
    return found
