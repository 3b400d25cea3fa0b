"""PipelineEngine: trains a PipelineModule, whole steps at a time."""

import os
import time

import torch
import torch.distributed as dist

from capstan import _C
from capstan.errors import ConfigError
from capstan.pipeline import SplitModel
from capstan.pipeline_engine import PipelineSteps
from deepspeed.runtime.dataloader import RepeatingLoader
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.pipe.module import PipelineError, PipelineModule
from deepspeed.utils.logging import log_dist, logger


class PipelineEngine(PipelineSteps, DeepSpeedEngine):
    """Made by deepspeed.initialize() for a PipelineModule, or for what capstan.pipeline.split() gives: train_batch() and
    eval_batch() take the place of forward(), backward() and step()."""

    def __init__(self, has_bool_tensors=False, *super_args, **super_kwargs):
        training_data = super_kwargs.pop("training_data", None)
        model = super_kwargs["model"]
        assert isinstance(model, (PipelineModule, SplitModel)), "model must base PipelineModule"
        super().__init__(*super_args, **super_kwargs)
        self.grid = self.mpu
        self._begin_pipeline()
        self.prev_stage, self.next_stage = self.stage_id - 1, self.stage_id + 1
        self.is_pipe_parallel, self.is_data_parallel = self.num_stages > 1, self.grid.data_parallel_size > 1
        self.is_model_parallel = self.grid.model_parallel_size > 1
        self.has_bool_tensors = self.has_attention_mask = has_bool_tensors
        self.agg_train_loss = self.agg_additional_losses = self.dp_group_loss = self.total_loss = None
        self._force_grad_boundary = False
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

    def _build_data_iter(self, dataset, collate_fn=None):
        """The data in its own order, again and again."""
        sampler = torch.utils.data.distributed.DistributedSampler(
            dataset, num_replicas=self.dp_world_size, rank=self.grid.get_data_parallel_rank(), shuffle=False)
        self.set_dataloader(RepeatingLoader(self.deepspeed_io(dataset, data_sampler=sampler, collate_fn=collate_fn)))

    def _log_stage(self):
        sizes = {name: shape.numel() for group in self._get_zero_param_shapes() for name, shape in group.items()}
        stages, (start, stop) = [None] * self.num_stages, self.module.stage_layers()
        dist.all_gather_object(stages, sizes, group=self.grid.get_pipe_parallel_group())
        own, total = sum(sizes.values()), sum(sum(each.values()) for each in stages)
        unique = sum({name: size for each in stages for name, size in each.items()}.values())
        if self.grid.data_parallel_id == 0:
            logger.info("RANK=%d STAGE=%d LAYERS=%d [%d, %d) STAGE_PARAMS=%d (%.3fM) TOTAL_PARAMS=%d (%.3fM) "
                        "UNIQUE_PARAMS=%d (%.3fM)", self.global_rank, self.stage_id, stop - start, start, stop, own, own / 1e6,
                        total, total / 1e6, unique, unique / 1e6)

    # What is saved

    def _counters(self):
        return {**super()._counters(), "micro_offset": getattr(self.module, "micro_offset", 0)}

    def _set_counters(self, counters):
        super()._set_counters(counters)
        if isinstance(self.module, PipelineModule):
            self.module.micro_offset = counters.get("micro_offset", self.module.micro_offset)  # seeds of layers go on

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
        super().set_dataiterator(iterator)
        if self.is_first_stage() or self.is_last_stage():
            self.training_dataloader = None

    def set_batch_fn(self, fn):
        """`fn` is called with each batch of the iterator and gives (inputs, labels)."""
        self.batch_fn = fn

    # A step

    def train_batch(self, data_iter=None):
        """One step of training over gradient_accumulation_steps() micro-batches; their mean loss, over all data, on every
        rank. `data_iter` gives (inputs, labels) on the first and the last stage."""
        assert self.basic_optimizer is not None, "there is no optimizer: pass one to initialize() to use train_batch()"
        self.tput_timer.start()
        self._applied = False
        losses = self._train(data_iter)
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
        self.total_loss = sum(losses[1:], losses[0].clone()) if losses else None
        names, own, means = self._tell(losses)
        self.dp_group_loss = torch.tensor(own[0], dtype=torch.float32, device=self.device)
        self.agg_train_loss, *others = [torch.tensor(mean, dtype=torch.float32, device=self.device) for mean in means]
        self.agg_additional_losses = dict(zip(names, others)) or None

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
        loader, count = self.training_dataloader, self.micro_batches if num_micro_batches is None else num_micro_batches
        try:
            results = self._evaluate(data_iter, count, compute_loss)
        finally:
            self.training_dataloader = loader
        result = None
        if self.is_last_stage():
            result = results if reduce_output is None else self._reduced(results)
        if compute_loss and bcast_loss and self.num_stages > 1:
            result = self._from_last_stage(result)
        if compute_loss and isinstance(result, torch.Tensor) and self.global_rank == 0 and self.core is not None:
            self.tell_validation_loss(result.float().mean())
        logits = self._calls.outputs
        self._calls.begin(count)
        return (result, logits) if return_logits else result

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

    def autocast(self):
        if not self.torch_autocast_enabled():
            return super().autocast()
        return torch.autocast(device_type=self.device.type, dtype=self.torch_autocast_dtype())

    def additional_losses(self):
        return getattr(self.module, "get_additional_losses", dict)() or {}
