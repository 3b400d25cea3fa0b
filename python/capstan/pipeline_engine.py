"""Engines that train and evaluate one stage of a pipeline, whole steps at a time."""

import collections
import contextlib

import torch
import torch.distributed as dist

from capstan import _C, process_group, tensors
from capstan.engine import Engine
from capstan.errors import ConfigError
from capstan.stage_calls import StageCalls


class PipelineSteps:
    """Mixed into an engine whose module is one stage: the mechanism of train_batch() and eval_batch().

    The module has num_stages and stage_id. forward(given) gives what the next stage is given, stage_loss(outputs, labels) the
    loss of the last one's outputs, stage_ties() the weights that several stages have. stage_recompute(interval, reentrant)
    has blocks of activations computed again, and stage_recomputes says whether any are.
    """

    is_pipeline = True
    _pipeline = None

    def _begin_pipeline(self):
        """At the end of construction."""
        self.num_stages, self.stage_id = self.module.num_stages, self.module.stage_id
        self.data_iterator = self.batch_fn = None
        interval = self.core_config.value("pipeline.activation_checkpoint_interval")
        reentrant = self.core_config.value("pipeline.use_reentrant") is not False
        if interval > 0 or not reentrant:
            self.module.stage_recompute(interval, reentrant)
        self._schedule = self.core_config.value("capstan.pipeline_schedule")
        self._calls = StageCalls(self)
        self._pipeline = _C.Pipeline(self.core, self._calls, halves=not self.module.stage_recomputes)

    def _ties(self):
        return self.module.stage_ties()

    def _split(self, config, group, optimizer):
        size = config.value("tensor_parallel.autotp_size")
        if size > 1:
            raise ConfigError(f"{size} tensor ranks cannot split the layers of a pipeline in Python yet", "tensor_parallel.autotp_size",
                              "use a pipeline or tensor ranks; `capstan train --pipe 2 --tensor 2` has both")
        super()._split(config, group, optimizer)

    def _close(self, shards=()):
        self._pipeline = None
        super()._close(shards)

    def autocast(self):
        return contextlib.nullcontext()

    def additional_losses(self):
        """{name: loss} of the last forward, to be told beside the loss."""
        return {}

    # Ranks

    def is_first_stage(self):
        return self.stage_id == 0

    def is_last_stage(self):
        return self.stage_id == self.num_stages - 1

    def _pipe_lists(self):
        return _C.pipe_mesh(dist.get_world_size(), self.num_stages).groups([_C.Axis.pipe])

    def _pipe_ranks(self):
        """The ranks of our pipeline, by stage."""
        return next(ranks for ranks in self._pipe_lists() if dist.get_rank() in ranks)

    def _pipe_group(self):
        return process_group.part_of(None, self._pipe_lists())

    # What is saved

    def _keeps_whole(self):
        """The first pipeline does."""
        return self._pipe_ranks() == self._pipe_lists()[0]

    def whole_weights(self, exclude_frozen_parameters=False):
        """Of all stages, on rank 0; None on the others. Collective."""
        own = super().whole_weights(exclude_frozen_parameters)
        if own is None:
            return None
        stages = [None] * self.num_stages if self._is_first() else None
        dist.gather_object(own, stages, dst=0, group=self._pipe_group())
        if stages is None:
            return None
        return collections.OrderedDict((name, value) for each in stages for name, value in each.items())

    def _pack_extra_states(self, packer):
        if self.stage_id > 0:
            for name in self._modules_with_extra_state():
                self._warn(f"not saved: the extra state of '{name}', which is not on the first stage")
        return super()._pack_extra_states(packer)

    # Steps

    @property
    def micro_batches(self):
        return self.core_config.value("gradient_accumulation_steps")

    def set_dataiterator(self, iterator):
        """`iterator` gives (inputs, labels), or dicts that have labels, on the first and the last stage."""
        if self.is_first_stage() or self.is_last_stage():
            self.data_iterator = iterator

    def _train(self, data_iter):
        """Micro-batches and the update of one step; their losses, on the last stage."""
        if not torch.is_grad_enabled():
            raise RuntimeError("train_batch() requires gradients enabled. Use eval_batch() instead.")
        self._check_open()
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        self.train()
        self.core.reload_states()
        self._calls.begin(self.micro_batches)
        self._send_groups()  # now: updates may begin in backward
        if self._profile is None:
            return self._pipeline.train(self._schedule, self.micro_batches)
        self._profile.before_forward(self.micro_batches)
        losses = self._pipeline.train(self._schedule, self.micro_batches)
        self._profile.before_step()
        self._profile.after_step()
        return losses

    def _evaluate(self, data_iter, count, compute_loss=True):
        """Forwards only: what each came to, on the last stage."""
        self._check_open()
        self.eval()
        training, self.data_iterator = self.data_iterator, None
        self.set_dataiterator(data_iter)
        self._calls.begin(count, compute_loss)
        try:
            self.core.reload_states()
            with torch.no_grad():
                self._pipeline.evaluate(count)
        finally:
            self.data_iterator = training
        return self._calls.results

    def _tell(self, losses):
        """On every rank: names of losses beside the first, and the means of all over the micro-batches, those of our own
        data and those over all data."""
        others = self._calls.additional or [self.additional_losses()]
        rows = [[float(value) for value in each.values()] for each in others]
        return (list(others[0]), *self._pipeline.mean_losses(losses, rows))

    def _reduced(self, results):
        """The mean over micro-batches and data-parallel ranks of results of one shape."""
        flat = [[] for _ in results]
        for found, result in zip(flat, results):
            tensors.visit(result, found)
        means = iter([self._pipeline.mean(torch.stack(column).float()) for column in zip(*flat)])
        return tensors.replace(results[0], lambda _: next(means))

    def _from_last_stage(self, value):
        held = [tensors.replace(value, torch.Tensor.cpu)]
        dist.broadcast_object_list(held, src=self._pipe_ranks()[-1], group=self._pipe_group())
        return tensors.replace(held[0], lambda x: x.to(self.device))


class PipelineEngine(PipelineSteps, Engine):
    """Made by capstan.initialize() for what capstan.pipeline.split() gives. train_batch() and eval_batch() take the place of
    forward(), backward() and step()."""

    def __init__(self, model, config, *, group=None, **how):
        if group is not None:
            raise ConfigError("a pipeline is over all ranks", "initialize(group)", "leave group out")
        super().__init__(model, config, mesh=_C.MeshOptions(pipe=model.num_stages), **how)
        self._begin_pipeline()

    def train_batch(self, data_iter=None):
        """One step over as many micro-batches as gradients are accumulated; their mean loss over all data, on every rank."""
        losses = self._train(data_iter)
        self._report = self._pipeline.last_step
        self._note_steps()
        _, _, means = self._tell(losses)
        return torch.tensor(means[0], device=self.device)

    def eval_batch(self, data_iter, micro_batches=None):
        """The mean loss of forwards only, over all data, on every rank. `micro_batches`: by default as many as in a step."""
        results = self._evaluate(data_iter, self.micro_batches if micro_batches is None else micro_batches)
        return self._from_last_stage(self._reduced(results) if self.is_last_stage() else None)

    @property
    def last_step(self):
        """What the last step did: applied, grad_norm, loss_scale, lr."""
        return self._report

    def _refuse(self, *args, **kwargs):
        raise ConfigError("one stage cannot run alone", "PipelineEngine", "call train_batch() or eval_batch()")

    forward = backward = step = _refuse
