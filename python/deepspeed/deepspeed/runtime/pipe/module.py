"""PipelineModule: a list of layers, of which this rank has those of its stage."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn

from capstan import _C, tensors
from capstan.errors import ConfigError
from capstan.process_group import part_of
from deepspeed.accelerator import get_accelerator
from deepspeed.comm.comm import init_distributed
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.pipe.axes import PipeDataParallelTopology
from deepspeed.runtime.pipe.grid import PipelineParallelGrid
from deepspeed.runtime.pipe.layer_files import LayerFiles
from deepspeed.runtime.pipe.layer_profile import measured
from deepspeed.runtime.pipe.layer_specs import LayerSpec, TiedLayerSpec, check_layers, trainable_elements, type_name
from deepspeed.runtime.utils import set_random_seed
from deepspeed.utils.logging import logger


_HOLE = torch.empty(0)  # where a tensor stood
_ANY_BYTES = 2**62  # no limit


class PipelineError(Exception):
    """An engine of a pipeline was asked for something that only an engine without one can do."""


class PipelineModule(LayerFiles, nn.Module):
    """Layers that run one after another, cut into stages; only this rank's stage is built.

    `layers`: modules, LayerSpec and TiedLayerSpec objects, functions, or an nn.Sequential. Each takes what the one before
    gave: a tensor or a nested tuple of tensors. Modules are children under their number in the whole list, so that a
    parameter's name does not depend on the cut.

    partition_method="profile" measures the layers with `profile_input`, the inputs of one micro-batch, and makes the slowest
    stage as fast as it can be while every stage fits into `stage_bytes`.
    """

    def __init__(self, layers, num_stages=None, topology=None, loss_fn=None, seed_layers=False, seed_fn=None,
                 base_seed=1234, partition_method="parameters", activation_checkpoint_interval=0,
                 activation_checkpoint_func=checkpointing.checkpoint, checkpointable_layers=None, dynamic_shape=False,
                 profile_input=None, stage_bytes=None):
        super().__init__()
        if num_stages is None and topology is None:
            raise RuntimeError("must provide num_stages or topology")
        assert checkpointable_layers is None or isinstance(checkpointable_layers, list), (
            "param `checkpointable_layers` must be type of list.")
        init_distributed(dist_backend=get_accelerator().communication_backend_name())
        self.loss_fn, self.checkpointable_layers, self.dynamic_shape = loss_fn, checkpointable_layers, dynamic_shape
        self.seed_layers, self.seed_fn, self.base_seed = seed_layers, seed_fn, base_seed
        self.micro_offset = 0
        self.curr_layer = None
        self.global_rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self._topo = topology if topology is not None else self._even_topology(num_stages)
        self.num_stages = self._topo.get_dim("pipe")
        self._grid = PipelineParallelGrid(topology=self._topo)
        self.stage_id = self._grid.get_stage_id()
        self._layer_specs = list(layers)
        check_layers(self._layer_specs)
        self._num_layers = len(self._layer_specs)
        self._partition_layers(partition_method, profile_input, stage_bytes)
        self.forward_funcs, self.fwd_map = [], {}
        self.tied_modules, self.tied_weight_attrs, self._tied_lists = nn.ModuleDict(), {}, {}
        self.activation_checkpoint_interval = activation_checkpoint_interval
        self.activation_checkpoint_func = activation_checkpoint_func
        self.is_checkpointable_results, self.is_checkpointable_results_interval = [], None
        self._build()
        self.tied_comms = self._index_tied_modules()
        if get_accelerator().device_name() != "cpu":
            self.to(get_accelerator().device_name(self.local_rank))

    @property
    def world_group(self):
        return dist.group.WORLD

    def _even_topology(self, num_stages):
        if self.world_size % num_stages != 0:
            raise RuntimeError(f"num_stages ({num_stages}) must divide distributed world size ({self.world_size})")
        return PipeDataParallelTopology(num_pp=num_stages, num_dp=self.world_size // num_stages)

    # The cut

    def _partition_layers(self, method, profile_input=None, stage_bytes=None):
        counts = method.lower() == "parameters"
        if method.lower() == "profile":
            self.parts = self._measured_cut(method, profile_input, stage_bytes)
        else:
            self.parts = _C.cut_layers(method, [_C.PipelineLayer(type_name(layer), trainable_elements(layer) if counts else 0)
                                                for layer in self._layer_specs], self.num_stages)
        self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])
        if self.global_rank == 0:
            logger.info("Partitioning pipeline stages with method %s\n%s", method, self._describe_cut())

    def _measured_cut(self, method, profile_input, stage_bytes):
        """Rank 0 measures for all: another rank's clock would say something else."""
        if profile_input is None:
            raise ConfigError("nothing to measure the layers with", 'PipelineModule(partition_method="profile")',
                              "pass profile_input, the inputs of one micro-batch")
        found = [None]
        if self.global_rank == 0:
            try:
                layers = measured(self._layer_specs, profile_input)
                found = [_C.cut_layers(method, layers, self.num_stages, stage_bytes or _ANY_BYTES)]
            except Exception as error:  # told to all
                found = [error]
        dist.broadcast_object_list(found, src=0)
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def _describe_cut(self):
        lines = []
        for stage in range(self.num_stages):
            start, stop = self.parts[stage], self.parts[stage + 1]
            lines.append(f"stage={stage} layers={stop - start}")
            lines += [f"    {at:2d}: {type_name(layer) or layer}" for at, layer in
                      enumerate(self._layer_specs[start:stop], start)]
        if self.loss_fn:
            lines.append(f"  loss: {getattr(self.loss_fn, '__name__', type(self.loss_fn).__name__)}")
        return "\n".join(lines)

    def _set_bounds(self, start=None, stop=None):
        self._local_start, self._local_stop = start, stop

    def partitions(self):
        return self.parts

    def stage_owner(self, layer_idx):
        assert 0 <= layer_idx < self._num_layers, f"there is no layer {layer_idx}"
        return next(stage for stage in range(self.num_stages) if layer_idx < self.parts[stage + 1])

    def topology(self):
        return self._topo

    def mpu(self):
        return self._grid

    def num_pipeline_stages(self):
        return self.num_stages

    # Building

    def tied_stages(self):
        """{key: the stages that have a layer of it}, in the order of keys."""
        found = {}
        for index, layer in enumerate(self._layer_specs):
            if isinstance(layer, TiedLayerSpec):
                found.setdefault(layer.key, set()).add(self.stage_owner(index))
        return {key: sorted(found[key]) for key in sorted(found)}

    def _index_tied_modules(self):
        """{key: the ranks that have a copy, and ours}, of those that several stages have. Copies beyond the first stage are
        marked; an engine gives all of them the first one's values, and sums their gradients."""
        found = {}
        for key, stages in self.tied_stages().items():
            if len(stages) == 1:
                continue
            self._tied_lists[key] = self._grid.lists_of_stages(stages)
            part_of(None, self._tied_lists[key])  # on all ranks alike
            if self.stage_id not in stages:
                continue
            found[key] = {"ranks": [self._grid.stage_to_global(stage) for stage in stages], "module": self.tied_modules[key],
                          "weight_attr": self.tied_weight_attrs[key]}
            for param in self.tied_modules[key].parameters():
                param.ds_pipe_replicated = self.stage_id != stages[0]
        return found

    def _seed(self, seed):
        (self.seed_fn or set_random_seed)(seed)

    def _build(self):
        for index in range(self._local_start, self._local_stop):
            layer = self._layer_specs[index]
            if self.seed_layers:
                self._seed(self.base_seed + index)
            if isinstance(layer, PipelineModule):
                raise NotImplementedError("a PipelineModule cannot be a layer of another: give its layers")
            self.forward_funcs.append(self._built(index, layer))
        for param in self.parameters():
            param.ds_pipe_replicated = False

    def _built(self, index, layer):
        """What is called for this layer; modules become children."""
        if isinstance(layer, TiedLayerSpec):
            if layer.key not in self.tied_modules:
                self.tied_modules[layer.key] = layer.build()
                self.tied_weight_attrs[layer.key] = layer.tied_weight_attr
            module = self.tied_modules[layer.key]
            return module if layer.forward_fn is None else functools.partial(layer.forward_fn, module)
        module = layer.build() if isinstance(layer, LayerSpec) else layer
        if isinstance(module, nn.Module):
            self.fwd_map[str(index)] = len(self.forward_funcs)
            self.add_module(str(index), module)
        return module

    def get_tied_weights_and_groups(self):
        """Pairs of a weight that other stages share and the group of the ranks that do."""
        return [(functools.reduce(getattr, name.split("."), tie["module"]), part_of(None, self._tied_lists[key]))
                for key, tie in self.tied_comms.items() for name in tie["weight_attr"]]

    def compile(self, *args, **kwargs):
        """torch.compile for each layer."""
        for index, layer in enumerate(self.forward_funcs):
            if isinstance(layer, nn.Module):
                layer.compile(*args, **kwargs)
            else:
                self.forward_funcs[index] = torch.compile(layer, *args, **kwargs)

    # Running

    def forward(self, forward_input):
        """This stage's layers, one after another."""
        self.micro_offset = self.micro_offset + 1  # forwards so far: a part of each layer's seed
        count, interval = len(self.forward_funcs), self.activation_checkpoint_interval
        if interval == 0:
            return self._range(0, count)(forward_input)
        self._precompute_checkpointable_values()
        x = forward_input
        for start, wanted in zip(range(0, count, interval), self.is_checkpointable_results):
            run = self._range(start, min(start + interval, count))
            x = x if isinstance(x, tuple) else (x,)
            x = self._recomputed(run, x) if wanted and self._can_recompute(x) else run(*x)
        return x

    def _recomputed(self, run, inputs):
        """run(*inputs) whose activations are computed again in backward. What recomputes it sees lists of tensors only:
        the reentrant kind would lose the gradients of those inside of tuples."""
        given, shape = [], []
        tensors.visit(inputs, given)

        def run_flat(*values):
            values, found = iter(values), []
            outputs = run(*tensors.replace(inputs, lambda _: next(values)))
            tensors.visit(outputs, found)
            shape[:] = [tensors.replace(outputs, lambda _: _HOLE)]
            return tuple(found)

        results = iter(self.activation_checkpoint_func(run_flat, *given))
        return tensors.replace(shape[0], lambda _: next(results))

    def _range(self, start, end):
        """A function that runs some layers, each under a seed of its own where that is asked for: the same when it is
        run again in backward, and however the layers are cut and recomputed."""
        base = self.base_seed * (self.micro_offset + 1)

        def run(*inputs):
            x = inputs[0] if len(inputs) == 1 else inputs
            for index in range(start, end):
                self.curr_layer = index + self._local_start
                if self.seed_layers:
                    self._seed(base + self.curr_layer)
                x = self.forward_funcs[index](x)
            return x

        return run

    def _can_recompute(self, inputs):
        """The reentrant kind loses the gradients of a block none of whose inputs requires one: embeddings of tokens."""
        if self.activation_checkpoint_func is checkpointing.non_reentrant_checkpoint or not torch.is_grad_enabled():
            return True
        found = []
        tensors.visit(inputs, found)
        return any(x.requires_grad for x in found)

    def set_checkpoint_interval(self, interval):
        assert interval >= 0, "the interval is a number of layers"
        self.activation_checkpoint_interval = interval
        self._precompute_checkpointable_values()

    def _precompute_checkpointable_values(self):
        interval = self.activation_checkpoint_interval
        if interval > 0 and self.is_checkpointable_results_interval != interval:
            self.is_checkpointable_results = [self._is_checkpointable(self.forward_funcs[start:start + interval])
                                              for start in range(0, len(self.forward_funcs), interval)]
            self.is_checkpointable_results_interval = interval

    def _is_checkpointable(self, funcs):
        """Whether a block of layers is recomputed: those of the named classes, otherwise those that have parameters."""
        if self.checkpointable_layers is not None:
            return all(type(func).__name__ in self.checkpointable_layers for func in funcs)
        return any(isinstance(func, nn.Module) and any(True for _ in func.parameters()) for func in funcs)

    # What an engine asks of a stage.

    def stage_layers(self):
        return self._local_start, self._local_stop

    def stage_loss(self, outputs, labels):
        return outputs if self.loss_fn is None else self.loss_fn(outputs, labels)

    def stage_ties(self):
        """Every parameter of a tied module: in one piece, its layers share all of them."""
        ties = []
        for key, stages in self.tied_stages().items():
            own = [name for name, _ in self.named_parameters() if name.startswith(f"tied_modules.{key}.")]
            ties += [(key, stages, own)] if len(stages) > 1 else []
        return ties

    def stage_recompute(self, interval, reentrant):
        if not reentrant:
            self.activation_checkpoint_func = checkpointing.non_reentrant_checkpoint
        self.set_checkpoint_interval(interval)

    @property
    def stage_recomputes(self):
        return self.activation_checkpoint_interval > 0

    @property
    def inputs_need_gradients(self):
        """Whether inputs of the first stage must require gradients for its layers to have theirs."""
        reentrant = self.activation_checkpoint_func is not checkpointing.non_reentrant_checkpoint
        return self.activation_checkpoint_interval > 0 and reentrant

    def get_additional_losses(self):
        """{name: loss} of the last forward, to be reported beside the loss; models may have some."""
        return None


__all__ = ["LayerSpec", "PipelineError", "PipelineModule", "TiedLayerSpec"]
