"""Topologies, schedules and cuts of pipelines as scripts of DeepSpeed see them, and modules that hold one stage."""

import time

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec  # noqa: E402
from deepspeed.runtime.pipe import schedule, topology  # noqa: E402
from deepspeed.runtime.pipe.layer_specs import trainable_elements  # noqa: E402
from deepspeed.runtime.utils import partition_balanced, partition_uniform  # noqa: E402


def test_ranks_are_numbered_with_the_last_axis_fastest():
    topo = topology.PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
    assert (topo.get_axis_names(), topo.world_size()) == (["pipe", "data", "model"], 8)
    assert [topo.get_rank(**topo.get_coord(rank)._asdict()) for rank in range(8)] == list(range(8))
    assert topo.get_coord(5) == topo.ProcessCoord(pipe=1, data=0, model=1)
    assert topo.get_axis_comm_lists("pipe") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert topo.get_axis_comm_lists("data") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert topo.get_axis_comm_lists("model") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert topo.get_axis_comm_lists("none") == [] and topo.get_dim("none") == 0
    assert topo.filter_match(pipe=0, data=1) == [2, 3] and topo.get_axis_list("data", 1) == [2, 3, 6, 7]
    assert (topo.get_rank_repr(5), topo.get_rank_repr(5, omit_axes=["model"])) == ("model_01", "pipe_01-data_00")
    three = topology.PipeDataParallelTopology(num_pp=3, num_dp=2)
    assert three.get_axis_comm_lists("pipe") == [[0, 2, 4], [1, 3, 5]]


def test_places_that_do_not_exist_are_refused():
    topo = topology.ProcessTopology(axes=["a", "b"], dims=[2, 3])
    with pytest.raises(ValueError, match="each of the axes"):
        topo.get_rank(a=0)
    with pytest.raises(AssertionError, match="b=3"):
        topo.get_rank(a=0, b=3)
    with pytest.raises(ValueError, match="rank 6"):
        topo.get_coord(6)


def short(sched):
    """One word per step: "L0 F0"."""
    names = {"LoadMicroBatch": "L", "ForwardPass": "F", "BackwardPass": "B", "SendActivation": "sA", "RecvActivation": "rA",
             "SendGrad": "sG", "RecvGrad": "rG"}
    return [" ".join(f"{names[c.name]}{c.buffer_id}" if c.name in names else c.name for c in step) for step in sched]


END = "ReduceTiedGrads ReduceGrads OptimizerStep"


def test_a_step_of_training_is_deepspeed_s():
    first, last = (schedule.TrainSchedule(micro_batches=4, stages=2, stage_id=stage) for stage in (0, 1))
    assert short(first) == ["L0 F0", "sA0", "L1 F1", "rG0 sA1 B0", "L0 F0", "rG1 sA0 B1", "L1 F1", "rG0 sA1 B0", "",
                            f"rG1 B1 {END}"]
    assert short(last) == ["", "rA0 L0 F0", "B0", "sG0 rA1 L1 F1", "B1", "sG1 rA0 L0 F0", "B0", "sG0 rA1 L1 F1", "B1",
                           f"sG1 {END}"]
    assert short(first) == short(first)  # from the beginning each time
    four = [schedule.TrainSchedule(micro_batches=5, stages=4, stage_id=stage) for stage in range(4)]
    assert [each.num_pipe_buffers() for each in four] == [4, 3, 2, 2]
    assert [at for at, step in enumerate(short(four[3])) if "F" in step.replace("rA", "")] == [3, 5, 7, 9, 11]


def test_forwards_alone_take_two_buffers():
    middle = schedule.InferenceSchedule(micro_batches=3, stages=3, stage_id=1)
    assert short(middle) == ["", "rA0 F0", "rA1 sA0 F1", "rA0 sA1 F0", "sA0"]
    assert middle.num_pipe_buffers() == 2
    assert not middle.is_first_stage and not middle.is_last_stage
    alone = schedule.DataParallelSchedule(micro_batches=2, stages=1, stage_id=0)
    assert short(alone) == ["L0 F0 B0", "L0 F0 B0 ReduceGrads OptimizerStep"]
    assert repr(schedule.ForwardPass(3)) == "ForwardPass(buffer_id=3)"


def test_cuts_are_those_of_the_core():
    assert partition_uniform(10, 4) == [0, 3, 6, 8, 10]
    assert partition_balanced([0, 1, 2, 3, 3, 3], 4) == [0, 3, 4, 5, 6]


def grid_of_four():
    grid = topology.PipelineParallelGrid(topology=topology.PipeDataParallelTopology(num_pp=2, num_dp=2))
    mine = {}
    for name, group in (("pipe", grid.get_pipe_parallel_group()), ("data", grid.get_data_parallel_group()),
                        ("model", grid.get_model_parallel_group()), ("slice", grid.get_slice_parallel_group())):
        total = torch.tensor([10**dist.get_rank()])
        dist.all_reduce(total, group=group)
        mine[name] = total.item()
    assert (grid.get_pipe_parallel_rank(), grid.get_data_parallel_rank()) == divmod(dist.get_rank(), 2)
    assert (grid.get_model_parallel_world_size(), grid.get_slice_parallel_world_size()) == (2, 1)
    assert grid.stage_to_global(1) == 2 + dist.get_rank() % 2 and grid.stage_to_global(0, data=1) == 1
    assert grid.p2p_groups == [[0, 2], [1, 3], [2, 0], [3, 1]]
    default = topology.PipelineParallelGrid()
    assert (default.pipe_parallel_size, default.data_parallel_size) == (2, 2)
    with pytest.raises(AssertionError, match="6 ranks"):
        topology.PipelineParallelGrid(topology=topology.PipeDataParallelTopology(num_pp=3, num_dp=2))
    return mine


def test_a_grid_has_the_groups_of_its_axes():
    pipe = {0: 101, 1: 1010, 2: 101, 3: 1010}
    data = {0: 11, 1: 11, 2: 1100, 3: 1100}
    for rank, mine in enumerate(ranks.run(4, grid_of_four)):
        assert mine == {"pipe": pipe[rank], "data": data[rank], "model": pipe[rank], "slice": 10**rank}


class Counted(nn.Linear):
    built = []

    def __init__(self, size, at):
        super().__init__(size, size)
        if self.weight.device.type != "meta":
            self.built.append(at)


def stage_of_two():
    Counted.built.clear()
    layers = [LayerSpec(Counted, 4, at) for at in range(4)] + [torch.relu, nn.Linear(4, 2)]
    module = PipelineModule(layers, num_stages=2, partition_method="uniform", seed_layers=True, loss_fn=nn.MSELoss())
    assert module.partitions() == [0, 3, 6] and [module.stage_owner(at) for at in (2, 3)] == [0, 1]
    assert module.num_pipeline_stages() == 2 and module.mpu().get_stage_id() == module.stage_id == dist.get_rank()
    with pytest.raises(RuntimeError, match="must divide"):
        PipelineModule(layers, num_stages=4)
    return Counted.built, sorted(module.state_dict()), {n: p.detach() for n, p in module.named_parameters()}


def test_a_rank_builds_its_own_stage_under_the_names_of_the_whole():
    first, last = ranks.run(2, stage_of_two)
    assert (first[0][:3], last[0][:1]) == ([0, 1, 2], [3])
    assert first[1] == [f"{at}.{name}" for at in (0, 1, 2) for name in ("bias", "weight")]
    assert last[1] == [f"{at}.{name}" for at in (3, 5) for name in ("bias", "weight")]
    torch.manual_seed(1234 + 2)
    assert torch.equal(first[2]["2.weight"], nn.Linear(4, 4).weight)
    torch.manual_seed(1234 + 3)
    assert torch.equal(last[2]["3.weight"], nn.Linear(4, 4).weight)


def cut(method, layers=None):
    layers = layers or [LayerSpec(nn.Linear, 4, 40), LayerSpec(nn.ReLU), LayerSpec(nn.Linear, 40, 4), LayerSpec(nn.ReLU)]
    return PipelineModule(layers, num_stages=2, partition_method=method).partitions()


def cuts_of_two():
    found = [cut(method) for method in ("uniform", "parameters", "type:linear", "type:^relu$")]
    with pytest.raises(ValueError, match='matches "conv"'):
        cut("type:conv")
    with pytest.raises(ValueError, match="did you mean"):
        cut("uniforn")
    return found


def test_layers_are_cut_by_number_parameters_or_type():
    assert ranks.run(2, cuts_of_two)[0] == [[0, 2, 4], [0, 2, 4], [0, 2, 4], [0, 3, 4]]


class Slow(nn.Module):
    """Takes its time, without a parameter; keeps as many numbers for backward as it is told."""

    def __init__(self, seconds, kept=1):
        super().__init__()
        self.seconds, self.kept = seconds, kept

    def forward(self, x):
        time.sleep(self.seconds)
        return x + (torch.ones(self.kept) * x.sum()).exp().sum() * 0


def profiled():
    def cut(layers, stage_bytes=None):
        return PipelineModule(layers, num_stages=2, partition_method="profile", profile_input=torch.ones(2),
                              stage_bytes=stage_bytes).partitions()

    times = [LayerSpec(Slow, seconds) for seconds in (0.1, 0.01, 0.01, 0.01)]
    large = [times[0], *(LayerSpec(Slow, 0.01, 10**6) for _ in range(3))]  # 8 MB of activations each
    with pytest.raises(ValueError, match="at the best cut, stage"):
        cut(large, 10**7)
    with pytest.raises(ValueError, match="profile_input"):
        PipelineModule(times, num_stages=2, partition_method="profile")
    with pytest.raises(RuntimeError, match="no layer for that"):
        cut([fails, *times])
    return cut(times), cut(large, 2 * 10**7)


def fails(x):
    raise RuntimeError("no layer for that")


def test_layers_are_cut_by_measured_time_within_memory():
    assert ranks.run(2, profiled) == [([0, 1, 4], [0, 2, 4])] * 2


class Looks(nn.Linear):
    def __init__(self):
        super().__init__(3, 5)
        self.largest = self.weight.max().item()  # a constructor that needs values


def test_counting_a_layer_draws_nothing_from_the_generator():
    before = torch.random.get_rng_state()
    assert [trainable_elements(LayerSpec(kind)) for kind in (Looks, nn.ReLU)] == [20, 0]
    assert trainable_elements(LayerSpec(nn.Linear, 3, 5)) == 20 and trainable_elements(torch.relu) == 0
    assert torch.equal(before, torch.random.get_rng_state())


class Drop(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return nn.functional.dropout(self.inner(x), 0.5)


def of_one_stage():
    tied = [TiedLayerSpec("embed", nn.Embedding, 7, 6), Drop(), Drop(), LayerSpec(Drop),
            TiedLayerSpec("embed", nn.Embedding, 7, 6, forward_fn=lambda embed, x: x @ embed.weight.T)]
    whole = PipelineModule(tied, num_stages=1, seed_layers=True)
    assert sorted(n for n, _ in whole.named_parameters() if "tied" in n) == ["tied_modules.embed.weight"]
    tokens = torch.tensor([[1, 2, 3]])
    grads = []
    for interval in (0, 1, 2):
        whole.micro_offset = 0
        whole.set_checkpoint_interval(interval)
        whole.zero_grad()
        outputs = [whole(tokens) for _ in range(2)]
        sum(output.square().sum() for output in outputs).backward()
        assert not torch.equal(*outputs)  # each micro-batch has its own seed
        grads.append({n: p.grad.clone() for n, p in whole.named_parameters()})
    assert all(torch.equal(each[name], grads[0][name]) for each in grads[1:] for name in grads[0])
    assert len(grads[0]) == 7
    named = PipelineModule([nn.Linear(2, 2), nn.ReLU(), Drop()], num_stages=1, checkpointable_layers=["Drop"])
    named.set_checkpoint_interval(1)
    assert named.is_checkpointable_results == [False, False, True]
    named.set_checkpoint_interval(2)
    assert named.is_checkpointable_results == [False, True]


def test_one_stage_runs_all_layers_and_recomputes_them_with_their_seeds():
    ranks.run(1, of_one_stage)
