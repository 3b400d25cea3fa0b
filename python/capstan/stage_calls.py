"""What the core asks of one stage while a pipeline runs: its data, its layers, its loss."""

import collections
import weakref
from collections.abc import Mapping

import torch

from capstan import nested, tensors
from capstan.errors import ConfigError


def loaded(value, device):
    """Data of a loader on a device, lists as tuples: loaders make lists of them."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    if isinstance(value, (tuple, list)):
        return tuple(loaded(each, device) for each in value)
    return {key: loaded(each, device) for key, each in value.items()} if isinstance(value, dict) else value


def _floating(x):
    return x.requires_grad_() if x.is_floating_point() else x


class StageCalls:
    """Micro-batches are loaded and run forward one after another; labels wait for their forward."""

    def __init__(self, engine):
        self._engine = weakref.ref(engine)
        self.begin(engine.micro_batches)

    def begin(self, micro_batches, compute_loss=True):
        """Before each run of the pipeline."""
        self._micro_batches, self._compute_loss = micro_batches, compute_loss
        self._labels, self._batch = collections.deque(), None
        self.outputs = None   # of the last forward of the last stage
        self.results = []     # of the last stage's forwards, losses or outputs
        self.additional = []  # other losses that the model reports

    def _next_batch(self, micro_batch):
        """(inputs, labels), or a dict that has labels."""
        engine, batch = self._engine(), None
        if engine.data_iterator is not None:
            try:
                batch = next(engine.data_iterator)
            except StopIteration:
                raise ConfigError(
                    f"the data ended before micro-batch {micro_batch} of {self._micro_batches}", "train_batch(data_iter)",
                    "give an iterator with a batch for every micro-batch of a step, for example that of a loader that begins "
                    "again, as deepspeed.utils.RepeatingLoader(loader) does") from None
        if engine.batch_fn is not None:
            batch = engine.batch_fn(batch)
        if batch is None:
            raise ConfigError(f"stage {engine.stage_id} has no data", "train_batch(data_iter)",
                              "give the first and the last stage an iterator over (inputs, labels)")
        if isinstance(batch, Mapping) and "labels" in batch:
            return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]
        return batch

    def inputs(self, micro_batch):
        engine = self._engine()
        batch = self._next_batch(micro_batch)
        if engine.is_last_stage():
            self._batch = batch
        given = tensors.replace(loaded(batch[0], engine.device), torch.clone)  # layers may change it in place
        if engine.core_config.casts_inputs:
            given = tensors.cast(given, engine.param_dtype)
        if getattr(engine.module, "inputs_need_gradients", False) and torch.is_grad_enabled():
            given = tensors.replace(given, _floating)
        return nested.pack(given, "train_batch(data_iter)")

    def labels(self, micro_batch):
        batch = self._next_batch(micro_batch) if self._batch is None else self._batch
        self._batch = None
        self._labels.append(loaded(batch[1], self._engine().device))

    def forward(self, given):
        engine = self._engine()
        with engine.autocast():
            outputs = engine.module(nested.unpack(nested.fresh(given)))
        if not torch.is_grad_enabled():
            engine.core.end_pass()
        if not engine.is_last_stage():
            return nested.pack(outputs, f"the output of stage {engine.stage_id}")
        self.outputs = outputs
        return []

    def loss(self):
        engine, labels = self._engine(), self._labels.popleft()
        with engine.autocast():
            loss = engine.module.stage_loss(self.outputs, labels) if self._compute_loss else self.outputs
        self.results.append(tensors.replace(loss, torch.detach))
        self.additional.append({name: float(value) for name, value in engine.additional_losses().items()})
        if not torch.is_grad_enabled():
            return torch.zeros(1)  # results have it, whatever it is
        if not isinstance(loss, torch.Tensor):
            raise ConfigError(f"the loss is a {type(loss).__name__}", "train_batch()",
                              "return a tensor of one element from the function that computes it")
        self.outputs = None
        return loss
