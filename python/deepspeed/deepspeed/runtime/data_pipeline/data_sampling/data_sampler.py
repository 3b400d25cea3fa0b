"""DeepSpeedDataSampler: micro-batches of samples that a curriculum admits. Which samples are next is the core's arithmetic
(capstan._C.DifficultySampler); what is here reads the analyzer's files and shares batches out."""

import numpy as np
import torch

from capstan import _C
from capstan.errors import ConfigError
from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset


def _whole(path, what):
    if not path:
        raise ConfigError(f"{what} is missing", "curriculum_metrics", "give the path that the analyzer wrote, without .idx or .bin")
    return MMapIndexedDataset(path)


def read_order(metric):
    """What the analyzer found out about one metric: every sample by rising value."""
    rows = _whole(metric.get("index_to_sample_path"), "index_to_sample_path")
    samples = np.concatenate([np.asarray(row, np.int64) for row in rows] or [np.empty(0, np.int64)])
    if metric.get("difficulty_type") == "percentile":
        return _C.MetricOrder(torch.from_numpy(samples), torch.empty(0, dtype=torch.long), metric["max_difficulty"])
    values = _whole(metric.get("index_to_metric_path"), "index_to_metric_path")
    if len(values) != len(rows):
        raise ConfigError(f"{len(values)} values for {len(rows)} groups of samples", metric["index_to_metric_path"],
                          "give both files of one analysis; percentile_merged files are for difficulty_type percentile")
    of_rows = np.array([int(row[0]) for row in values], np.int64)
    return _C.MetricOrder(torch.from_numpy(samples), torch.from_numpy(np.repeat(of_rows, np.asarray(rows.sizes))))


class DeepSpeedDataSampler:
    """Lists of samples, one per micro-batch of this rank. The order of all samples is the same for every number of ranks."""

    def __init__(self, data_efficiency_config, one_epoch_total_samples, micro_batch_size, data_parallel_rank, data_parallel_size,
                 data_parallel_group=None, gradient_accumulation_steps=1, global_rank=0, drop_last=True):
        sampling = data_efficiency_config["data_sampling"]
        curriculum = sampling.get("curriculum_learning") or {}
        self.one_epoch_total_samples = one_epoch_total_samples
        self.total_samples = one_epoch_total_samples * {**_C.config_defaults("data_efficiency.data_sampling"), **sampling}["num_epochs"]
        self.micro_batch_size, self.gradient_accumulation_steps = micro_batch_size, gradient_accumulation_steps
        self.data_parallel_rank, self.data_parallel_size = data_parallel_rank, data_parallel_size
        self.global_batch_size = micro_batch_size * data_parallel_size * gradient_accumulation_steps
        self._seed = {**_C.config_defaults("data_efficiency"), **data_efficiency_config}["seed"]
        metrics = (curriculum.get("curriculum_metrics") or {}) if curriculum.get("enabled") else {}
        if curriculum.get("enabled") and not metrics:
            raise ConfigError("the curriculum has no metrics", "data_sampling.curriculum_learning.curriculum_metrics", "name at least one")
        if self.total_samples < self.global_batch_size:
            raise ConfigError(f"{self.total_samples} samples are less than a batch of {self.global_batch_size}", "data_sampling",
                              "use more data, more epochs or a smaller batch")
        self._clusters = [name for name, each in metrics.items() if each.get("clustering_type") != "single_cluster"]
        self._schedulers = {name: CurriculumScheduler(each) for name, each in metrics.items()}
        self._orders = [read_order(metrics[name]) for name in self._clusters]
        self._begin_anew()

    def __len__(self):
        return self.total_samples

    @property
    def micro_batches(self):
        """Of a rank, in the whole run."""
        return self.total_samples // self.global_batch_size * self.gradient_accumulation_steps

    def set_custom_curriculum_learning_schedule(self, schedule_func_dict):
        """metric -> a function from the number of a batch, counted from 1, to its difficulty."""
        for name, function in schedule_func_dict.items():
            if name in self._schedulers:
                self._schedulers[name].set_custom_get_difficulty(function)

    # Where it stands. The loader may be ahead of the training loop: what counts is what the loop was given.

    def _begin_anew(self):
        self._core = _C.DifficultySampler(self.one_epoch_total_samples, self._orders, self._seed)
        self.consumed_samples = 0  # drawn, by all ranks
        self._changes = []  # [samples drawn before, difficulties by metric]
        self._before = {"samples": 0, "steps": 0}  # of the checkpoint that was loaded
        self._handed = 0  # micro-batches that the loop was given since

    def note_handed(self):
        self._handed += 1

    @property
    def curriculum_step(self):
        """Whole batches that the loop was given."""
        return self._before["steps"] + self._handed // self.gradient_accumulation_steps

    def state_dict(self):
        given = self._before["samples"] + self._handed // self.gradient_accumulation_steps * self.global_batch_size
        changes = [change for change in self._changes if change[0] <= given]
        return {"consumed_samples": given, "curriculum_step": self.curriculum_step, "changes": changes,
                "current_difficulties": dict(changes[-1][1]) if changes else {}}

    def load_state_dict(self, state_dict):
        self._begin_anew()
        self._before = {"samples": state_dict["consumed_samples"], "steps": state_dict["curriculum_step"]}
        for at, difficulties in state_dict["changes"]:
            if at < self._before["samples"]:
                self._take_change(int(at), difficulties)
        self._skip_to(self._before["samples"])

    def _take_change(self, at, difficulties):
        self._skip_to(at)
        self._changes.append([at, dict(difficulties)])
        if self._clusters:
            self._core.admit([int(difficulties[name]) for name in self._clusters])

    def _skip_to(self, samples):
        self._core.skip(samples - self.consumed_samples)
        self.consumed_samples = samples

    # Batches

    def _next_batch(self, step):
        difficulties = {name: scheduler.update_difficulty(step) for name, scheduler in self._schedulers.items()}
        if self._schedulers and (not self._changes or self._changes[-1][1] != difficulties):
            self._take_change(self.consumed_samples, difficulties)
        batch = self._core.next(self.global_batch_size)
        self.consumed_samples += self.global_batch_size
        return batch

    def __iter__(self):
        """From the batch that the loop is in, whatever a loader has drawn ahead."""
        self.load_state_dict(self.state_dict())
        step, ranks = self.curriculum_step, self.micro_batch_size * self.data_parallel_size
        while self.consumed_samples + self.global_batch_size <= self.total_samples:
            step += 1
            batch = self._next_batch(step)
            for begin in range(0, self.global_batch_size, ranks):
                mine = begin + self.data_parallel_rank * self.micro_batch_size
                yield batch[mine:mine + self.micro_batch_size]
