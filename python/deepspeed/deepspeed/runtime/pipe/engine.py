"""PipelineEngine: trains a PipelineModule, whole steps at a time."""

import collections
import os
import time

import torch
import torch.distributed as dist

from capstan import _C, tensors
from capstan.errors import ConfigError
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.dataloader import RepeatingLoader
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.module import PipelineError, PipelineModule
from deepspeed.runtime.pipe.stage_calls import StageCalls
from deepspeed.utils.logging import log_dist, logger


class PipelineEngine(DeepSpeedEngine):
    """Made by deepspeed.initialize() for a PipelineModule: train_batch() and eval_batch() take the place of forward(),
    backward() and step()."""

    is_pipeline = True

    def __init__(self, has_bool_tensors=False, *super_args, **super_kwargs):
        training_data = super_kwargs.pop("training_data", None)
        model = super_kwargs["model"]
        assert isinstance(model, PipelineModule), "model must base PipelineModule"
        self._pipeline = None
        super().__init__(*super_args, **super_kwargs)
        self.grid = self.module.mpu()
        self.num_stages, self.stage_id = self.grid.pipe_parallel_size, self.grid.get_stage_id()
        self.prev_stage, self.next_stage = self.stage_id - 1, self.stage_id + 1
        self.is_pipe_parallel, self.is_data_parallel = self.num_stages > 1, self.grid.data_parallel_size > 1
        self.is_model_parallel = self.grid.model_parallel_size > 1
        self.has_bool_tensors = self.has_attention_mask = has_bool_tensors
        self.data_iterator = self.batch_fn = None
        self.agg_train_loss = self.agg_additional_losses = self.dp_group_loss = self.total_loss = None
        self._force_grad_boundary = False
        self._take_pipeline_section()
        self._calls = StageCalls(self)
        self._pipeline = _C.Pipeline(self.core, self._calls)
        self._printed = (time.perf_counter(), self.global_steps)
        if training_data is not None:
            self._build_data_iter(training_data, super_kwargs.get("collate_fn"))
        self._log_stage()

    # Construction

    def _ranks(self):
        stages, slices = self.mpu.pipe_parallel_size, self.mpu.slice_parallel_size
        if slices > 1:
            raise ConfigError(f"the topology has {slices} ranks on the axis model", "PipelineModule(topology)",
                              "use a topology of pipe and data: layers that several ranks share do not work with a pipeline yet")
        return dist.group.WORLD, _C.MeshOptions(pipe=stages)

    def _split(self, config, group, optimizer):
        size = config.value("tensor_parallel.autotp_size")
        if size > 1:
            raise ConfigError(f"{size} tensor ranks cannot split the layers of a pipeline in Python yet", "tensor_parallel.autotp_size",
                              "use a pipeline or tensor ranks; `capstan train --pipe 2 --tensor 2` has both")
        super()._split(config, group, optimizer)

    def _ties(self):
        """Every parameter of a tied module: in one piece, its layers share all of them."""
        ties = []
        for key, stages in self.module.tied_stages().items():
            own = [name for name, _ in self.module.named_parameters() if name.startswith(f"tied_modules.{key}.")]
            ties += [(key, stages, own)] if len(stages) > 1 else []
        return ties

    def _take_pipeline_section(self):
        view, module = self._config.view, self.module
        stages = view.value("pipeline.stages")
        if stages not in (None, self.num_stages):
            raise ConfigError(f"the configuration has {stages} stages, but the model has {self.num_stages}", "pipeline.stages",
                              'write "auto", or make the PipelineModule with as many')
        if view.value("pipeline.use_reentrant") is False:
            module.activation_checkpoint_func = checkpointing.non_reentrant_checkpoint
        interval = view.value("pipeline.activation_checkpoint_interval")
        if interval > 0:
            module.set_checkpoint_interval(interval)
        self._schedule = view.value("capstan.pipeline_schedule")

    def _build_data_iter(self, dataset, collate_fn=None):
        """The data in its own order, again and again."""
        sampler = torch.utils.data.distributed.DistributedSampler(
            dataset, num_replicas=self.dp_world_size, rank=self.grid.get_data_parallel_rank(), shuffle=False)
        self.set_dataloader(RepeatingLoader(self.deepspeed_io(dataset, data_sampler=sampler, collate_fn=collate_fn)))

    def _log_stage(self):
        sizes = {name: shape.numel() for group in self._get_zero_param_shapes() for name, shape in group.items()}
        stages, module = [None] * self.num_stages, self.module
        dist.all_gather_object(stages, sizes, group=self.grid.get_pipe_parallel_group())
        own, total = sum(sizes.values()), sum(sum(each.values()) for each in stages)
        unique = sum({name: size for each in stages for name, size in each.items()}.values())
        if self.grid.data_parallel_id == 0:
            logger.info("RANK=%d STAGE=%d LAYERS=%d [%d, %d) STAGE_PARAMS=%d (%.3fM) TOTAL_PARAMS=%d (%.3fM) "
                        "UNIQUE_PARAMS=%d (%.3fM)", self.global_rank, self.stage_id, len(module.forward_funcs),
                        module._local_start, module._local_stop, own, own / 1e6, total, total / 1e6, unique, unique / 1e6)

    def _close(self, shards=()):
        self._pipeline = None
        super()._close(shards)

    # What is saved

    def _counters(self):
        return {**super()._counters(), "micro_offset": self.module.micro_offset}

    def _set_counters(self, counters):
        super()._set_counters(counters)
        self.module.micro_offset = counters.get("micro_offset", self.module.micro_offset)  # seeds of layers go on

    def _pack_extra_states(self, packer):
        if self.stage_id > 0:
            for name in self._modules_with_extra_state():
                self._warn(f"not saved: the extra state of '{name}', which is not on the first stage")
        return super()._pack_extra_states(packer)

    def _keeps_whole(self):
        return self.grid.data_parallel_id == 0

    def whole_weights(self, exclude_frozen_parameters=False):
        """Of all stages, on rank 0."""
        own = super().whole_weights(exclude_frozen_parameters)
        if own is None:
            return None
        stages = [None] * self.num_stages if self._is_first() else None
        dist.gather_object(own, stages, dst=0, group=self.grid.get_pipe_parallel_group())
        if stages is None:
            return None
        return collections.OrderedDict((name, value) for each in stages for name, value in each.items())

    def save_16bit_model(self, save_dir, save_filename="pytorch_model.bin", exclude_frozen_parameters=False):
        """Of all stages, under the names of the whole model. Collective."""
        self._write_weights(self.whole_weights(exclude_frozen_parameters), os.path.join(save_dir, save_filename))
        return True

    save_fp16_model = save_16bit_model

    # Data

    def set_dataloader(self, loader):
        if self.is_first_stage() or self.is_last_stage():
            self.training_dataloader = loader
            self.data_iterator = iter(loader)

    def set_dataiterator(self, iterator):
        if self.is_first_stage() or self.is_last_stage():
            self.training_dataloader = None
            self.data_iterator = iterator

    def set_batch_fn(self, fn):
        """`fn` is called with each batch of the iterator and gives (inputs, labels)."""
        self.batch_fn = fn

    # A step

    def train_batch(self, data_iter=None):
        """One step of training over gradient_accumulation_steps() micro-batches; their mean loss, over all data, on every
        rank. `data_iter` gives (inputs, labels) on the first and the last stage."""
        if not torch.is_grad_enabled():
            raise RuntimeError("train_batch() requires gradients enabled. Use eval_batch() instead.")
        assert self.basic_optimizer is not None, "there is no optimizer: pass one to initialize() to use train_batch()"
        self._check_open()
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        self.train()
        self.tput_timer.start()
        self.core.reload_states()
        self._calls.begin(self.micro_batches)
        self._applied = False
        self._send_groups()  # now: updates may begin in backward
        losses = self._pipeline.train(self._schedule, self.micro_batches)
        self._force_grad_boundary = True
        try:
            self._take_report(self._pipeline.last_step, True)
            self._after_step(None)
        finally:
            self._force_grad_boundary = False
        self._tell_losses(losses)
        self._note_time(True)
        self._print_step()
        return self.agg_train_loss

    def _tell_losses(self, losses):
        """To all ranks: the mean over the micro-batches, that over all data, and those of other losses."""
        count = self.micro_batches
        self.total_loss = sum(losses[1:], losses[0].clone()) if losses else None
        own = [float(self.total_loss / count)] if losses else [0.0]
        other = self._calls.additional or [self.module.get_additional_losses() or {}]
        own += [sum(float(each[name]) for each in other) / count for name in other[0]]
        told = self._pipeline.tell(own)
        mean = [torch.tensor(sum(column) / len(told), dtype=torch.float32, device=self.device) for column in zip(*told)]
        self.dp_group_loss = torch.tensor(told[self.grid.data_parallel_id][0], dtype=torch.float32, device=self.device)
        self.agg_train_loss = mean[0]
        self.agg_additional_losses = dict(zip(other[0], mean[1:])) or None

    def _print_step(self):
        if not self._report.log_due:
            return
        now, steps = time.perf_counter(), self.global_steps
        each = (now - self._printed[0]) / max(1, steps - self._printed[1])
        self._printed = (now, steps)
        others = "".join(f"{name}: {value.item():0.4f} " for name, value in (self.agg_additional_losses or {}).items())
        log_dist(f"steps: {steps} loss: {self.agg_train_loss.item():0.4f} {others}iter time (s): {each:0.3f} "
                 f"samples/sec: {self.train_batch_size() / each:0.3f}", ranks=[0])

    def eval_batch(self, data_iter, return_logits=False, compute_loss=True, reduce_output="avg", bcast_loss=True,
                   num_micro_batches=None):
        """Forwards only: the mean loss over micro-batches and data ranks, or that of the outputs where there is no loss.
        Without `compute_loss`, or without `bcast_loss`, on the last stage alone. With `return_logits`, a pair with the last
        micro-batch's outputs; with reduce_output=None, a list of each micro-batch's."""
        if reduce_output not in (None, "avg"):
            raise NotImplementedError(f"reduction type {reduce_output} not supported.")
        self._check_open()
        self.eval()
        count = self.micro_batches if num_micro_batches is None else num_micro_batches
        training, loader = self.data_iterator, self.training_dataloader
        self.set_dataiterator(data_iter)
        self._calls.begin(count, compute_loss)
        try:
            self.core.reload_states()
            with torch.no_grad():
                self._pipeline.evaluate(count)
                result = self._reduced(self._calls.results, reduce_output) if self.is_last_stage() else None
        finally:
            self.data_iterator, self.training_dataloader = training, loader
        if compute_loss and bcast_loss and self.num_stages > 1:
            result = self._from_last_stage(result)
        logits = self._calls.outputs
        self._calls.begin(count)
        return (result, logits) if return_logits else result

    def _reduced(self, results, reduce):
        if reduce is None:
            return results
        flat = [[] for _ in results]
        for found, result in zip(flat, results):
            tensors.visit(result, found)
        means = iter([self._pipeline.mean(torch.stack(column).float().mean(0)) for column in zip(*flat)])
        return tensors.replace(results[0], lambda _: next(means))

    def _from_last_stage(self, value):
        held = [tensors.replace(value, torch.Tensor.cpu)]
        dist.broadcast_object_list(held, src=self.grid.stage_to_global(self.num_stages - 1),
                                   group=self.grid.get_pipe_parallel_group())
        return tensors.replace(held[0], lambda x: x.to(self.device))

    def _refuse(self, *args, **kwargs):
        raise PipelineError("Only train_batch() is accessible in pipeline mode.")

    forward = backward = step = _refuse

    # Questions

    @property
    def micro_batches(self):
        return self.gradient_accumulation_steps()

    num_micro_batches = micro_batches

    @property
    def micro_batch_size(self):
        return self.train_micro_batch_size_per_gpu()

    def is_first_stage(self):
        return self.stage_id == 0

    def is_last_stage(self):
        return self.stage_id == self.num_stages - 1

    def get_pipeline_parallel_rank(self):
        return self.stage_id

    def is_gradient_accumulation_boundary(self):
        return self._force_grad_boundary

    def get_additional_losses(self):
        return self.agg_additional_losses

    def set_has_attention_mask(self, value):
        """Nothing depends on it: tensors of every dtype travel as they are."""
        assert isinstance(value, bool)
        self.has_attention_mask = value

    def reset_activation_shape(self):
        """Nothing is kept: every message says its own shapes."""

    def mem_status(self, msg, print_rank=-1, reset_max=False):
        """Logs how much memory this rank's device holds."""
        from deepspeed.accelerator import get_accelerator
        if print_rank not in (-1, self.global_rank):
            return
        accelerator = get_accelerator()
        logger.info("RANK=%d STAGE=%d STEP=%d %s: allocated=%d max_allocated=%d", self.global_rank, self.stage_id,
                    self.global_steps, msg, accelerator.memory_allocated(), accelerator.max_memory_allocated())
        if reset_max:
            accelerator.reset_peak_memory_stats()

    def _reentrant_activation_checkpointing(self):
        """Whether inputs of the first stage must require gradients for its layers to have theirs."""
        module = self.module
        return (module.activation_checkpoint_interval > 0
                and module.activation_checkpoint_func is not checkpointing.non_reentrant_checkpoint)
