"""PipelineParallelGrid: a topology laid over the ranks of a job, with their groups."""

import math

import torch.distributed as dist

from capstan._C import MeshOptions
from capstan.process_group import part_of
from deepspeed.runtime.pipe.axes import PipeDataParallelTopology, _prime_factors
from deepspeed.utils.logging import logger


def _default_topology(world):
    """The prime factors of the number of ranks go to pipe and data in turns."""
    factors = _prime_factors(world)
    return PipeDataParallelTopology(num_pp=math.prod(factors[0::2]), num_dp=math.prod(factors[1::2]))


class PipelineParallelGrid:
    """Where this rank stands, and which ranks it shares data, a pipeline or layers with.

    Making one is collective: every group is made on every rank, in the same order. "Model parallel" is everything but data;
    ranks that share a layer are "slice parallel".
    """

    def __init__(self, topology=None, process_group=None):
        self.global_rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._topo = _default_topology(self.world_size) if topology is None else topology
        if self.global_rank == 0 and topology is not None:
            logger.info("Using topology: %s", topology)
        assert self._is_grid_valid(), (
            f"a topology of {self._topo.world_size()} ranks does not fit a job of {self.world_size}: make the product of "
            f"its lengths the number of ranks")
        self.data_parallel_size = max(self._topo.get_dim("data"), 1)
        self.pipe_parallel_size = max(self._topo.get_dim("pipe"), 1)
        self.model_parallel_size = self.slice_parallel_size = max(self._topo.get_dim("model"), 1)
        self.stage_id, self.data_parallel_id = self.get_stage_id(), self.get_data_parallel_id()
        self.is_first_stage = self.stage_id == 0
        self.is_last_stage = self.stage_id == self.pipe_parallel_size - 1
        self._find_lists()
        for lists in (self._model_lists, self.dp_groups, self.pipe_groups, self._slice_lists):
            self._group(lists)

    def _find_lists(self):
        topo = self._topo
        self.dp_groups, self.pipe_groups = topo.get_axis_comm_lists("data"), topo.get_axis_comm_lists("pipe")
        self._model_lists = [topo.get_axis_list("data", at) for at in range(self.data_parallel_size)]
        self._slice_lists = topo.get_axis_comm_lists("model") or [[rank] for rank in range(self.world_size)]
        self.dp_group, self.pp_group = self._mine(self.dp_groups), self._mine(self.pipe_groups)
        self.slice_group = self._mine(self._slice_lists)
        self.model_groups = topo.get_axis_comm_lists("model")
        self.p2p_groups = self._build_p2p_groups()
        self.ds_model_world_size = len(self._mine(self._model_lists))
        self.ds_model_rank = self._mine(self._model_lists).index(self.global_rank)

    def _mine(self, lists):
        return next(ranks for ranks in lists if self.global_rank in ranks)

    @staticmethod
    def _group(lists):
        """Not kept here: a program that destroys its groups must be rid of them."""
        return part_of(None, lists)

    ds_model_proc_group = property(lambda self: self._group(self._model_lists))
    dp_proc_group = property(lambda self: self._group(self.dp_groups))
    pp_proc_group = property(lambda self: self._group(self.pipe_groups))
    slice_proc_group = property(lambda self: self._group(self._slice_lists))

    def _build_p2p_groups(self):
        """Each rank with that of the next stage; the last stage with the first."""
        return sorted([rank, following] for ranks in self.pipe_groups for rank, following in zip(ranks, ranks[1:] + ranks[:1]))

    def _is_grid_valid(self):
        return self._topo.world_size() == dist.get_world_size()

    def get_stage_id(self):
        return self._topo.get_coord(self.global_rank).pipe

    def get_data_parallel_id(self):
        return self._topo.get_coord(self.global_rank).data

    def stage_to_global(self, stage_id, **kwargs):
        """The rank of another stage that is like this one otherwise, but for what `kwargs` says."""
        return self._topo.get_rank(**self._topo.get_coord(self.global_rank)._replace(pipe=stage_id, **kwargs)._asdict())

    def lists_of_stages(self, stages):
        """Of each pipeline, the ranks of some stages together; every other rank alone."""
        lists = []
        for ranks in self.pipe_groups:
            together = [ranks[stage] for stage in stages]
            lists += [together, *([rank] for rank in ranks if rank not in together)]
        return lists

    def topology(self):
        return self._topo

    # What an engine asks a unit of model parallelism.

    def get_global_rank(self):
        return self.global_rank

    def get_pipe_parallel_rank(self):
        return self.stage_id

    def get_pipe_parallel_world_size(self):
        return self.pipe_parallel_size

    def get_pipe_parallel_group(self):
        return self.pp_proc_group

    get_pipeline_model_parallel_rank = get_pipe_parallel_rank
    get_pipeline_model_parallel_world_size = get_pipe_parallel_world_size

    def get_data_parallel_rank(self):
        return self.data_parallel_id

    def get_data_parallel_world_size(self):
        return self.data_parallel_size

    def get_data_parallel_group(self):
        return self.dp_proc_group

    def get_data_parallel_group_ranks(self):
        return self.dp_group

    def get_model_parallel_rank(self):
        return self.ds_model_rank

    def get_model_parallel_world_size(self):
        return self.ds_model_world_size

    def get_model_parallel_group(self):
        return self.ds_model_proc_group

    def get_slice_parallel_rank(self):
        return self.slice_group.index(self.global_rank)

    def get_slice_parallel_world_size(self):
        return self.slice_parallel_size

    def get_slice_parallel_group(self):
        return self.slice_proc_group

    get_tensor_model_parallel_rank = get_slice_parallel_rank
    get_tensor_model_parallel_world_size = get_slice_parallel_world_size


def grid_of(stages):
    """That of a pipeline whose other ranks see different data."""
    return PipelineParallelGrid(PipeDataParallelTopology(stages, MeshOptions(pipe=stages).data_ranks(dist.get_world_size())))
