"""DataAnalyzer: how difficult each sample of a data set is, computed in parallel, as indexed data sets that samplers read."""

import multiprocessing
import os

import numpy as np
import torch
import torch.distributed as dist

from capstan.errors import ConfigError
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import (MMapIndexedDataset, MMapIndexedDatasetBuilder,
                                                                           data_file_path, find_fit_int_dtype, index_file_path)

SINGLE, ACCUMULATED = "single_value_per_sample", "accumulate_value_over_samples"
_PERCENTILES = 100


def write_rows(path, rows, low=0, high=0):
    """An indexed data set of the smallest dtype that holds all numbers from `low` to `high`."""
    builder = MMapIndexedDatasetBuilder(data_file_path(path), dtype=find_fit_int_dtype(low, high))
    for row in rows:
        builder.add_item(row)
    builder.finalize(index_file_path(path))


class DataAnalyzer:
    """`num_workers` calls of run_map(), each with its own `worker_id`, in any processes on any machines with the same save_path,
    and then one of run_reduce(). A worker divides its samples among `num_threads` processes.

    A metric function takes a batch of `batch_size` samples and returns integers: one per sample (single_value_per_sample), or a
    tensor that is summed over all batches (accumulate_value_over_samples)."""

    def __init__(self, dataset, num_workers=1, worker_id=0, num_threads=1, num_threads_reduce=1, specific_threads=(), batch_size=1,
                 metric_names=(), metric_functions=(), metric_types=(), metric_dtypes=(), save_path="./", collate_fn=None,
                 custom_map_init=None, custom_map_update=None, custom_map_finalize=None, custom_reduce=None, sample_indices=None):
        for name, value in (("custom_map_init", custom_map_init), ("custom_map_update", custom_map_update),
                            ("custom_map_finalize", custom_map_finalize), ("custom_reduce", custom_reduce)):
            if value is not None:
                raise ConfigError(f"{name} is not supported", "DataAnalyzer", "compute what you need in a metric function")
        if not len(metric_names) == len(metric_functions) == len(metric_types):
            raise ConfigError(f"{len(metric_names)} names, {len(metric_functions)} functions and {len(metric_types)} types of metrics",
                              "DataAnalyzer", "give one of each per metric")
        for kind in metric_types:
            if kind not in (SINGLE, ACCUMULATED):
                raise ConfigError(f"no such type of a metric: {kind!r}", "metric_types", f"use {SINGLE!r} or {ACCUMULATED!r}")
        if not 0 <= worker_id < num_workers:
            raise ConfigError(f"worker_id {worker_id} of {num_workers} workers", "DataAnalyzer", "count workers from 0")
        self.dataset, self.save_path, self.batch_size, self.collate_fn = dataset, save_path, batch_size, collate_fn
        self.num_workers, self.worker_id, self.num_threads = num_workers, worker_id, max(1, num_threads)
        self.specific_threads = list(specific_threads)
        self.metrics = list(zip(metric_names, metric_functions, metric_types))
        self.sample_indices = sample_indices

    def _count(self):
        return len(self.dataset) if self.sample_indices is None else len(self.sample_indices)

    def _part_path(self, name, part):
        return os.path.join(self.save_path, name, f"part{part}_of{self.num_workers * self.num_threads}")

    # Map

    def run_map(self):
        """This worker's samples."""
        for name, _, _ in self.metrics:
            os.makedirs(os.path.join(self.save_path, name), exist_ok=True)
        threads = self.specific_threads or range(self.num_threads)
        parts = [self.worker_id * self.num_threads + thread for thread in threads]
        if len(parts) == 1:
            return self._map_part(parts[0])
        processes = [multiprocessing.get_context("fork").Process(target=self._map_part, args=(part,)) for part in parts]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        failed = [part for part, process in zip(parts, processes) if process.exitcode != 0]
        if failed:
            raise ConfigError(f"parts {failed} of the analysis failed", "DataAnalyzer.run_map", "see the error above")
        return None

    def _map_part(self, part):
        parts, count = self.num_workers * self.num_threads, self._count()
        begin, end = count * part // parts, count * (part + 1) // parts
        chosen = range(begin, end) if self.sample_indices is None else self.sample_indices[begin:end]
        loader = torch.utils.data.DataLoader(torch.utils.data.Subset(self.dataset, chosen), batch_size=self.batch_size,
                                             collate_fn=self.collate_fn)
        found = {name: [] for name, _, _ in self.metrics}
        for number, batch in enumerate(loader):
            size = min(self.batch_size, len(chosen) - number * self.batch_size)
            for name, function, kind in self.metrics:
                values = self._values(name, function(batch), size if kind == SINGLE else None)
                if kind == SINGLE or not found[name]:
                    found[name].append(values)
                else:
                    found[name][0] = found[name][0] + values
        for name, rows in found.items():
            builder = MMapIndexedDatasetBuilder(data_file_path(self._part_path(name, part)), dtype=np.int64)
            for row in rows:
                builder.add_item(row)
            builder.finalize(index_file_path(self._part_path(name, part)))

    @staticmethod
    def _values(name, values, size):
        values = np.asarray(values)
        if values.dtype.kind not in "iub":
            raise ConfigError(f"metric {name!r} has values of {values.dtype.name}", "metric_functions", "return integers")
        if size is not None and values.size != size:
            raise ConfigError(f"metric {name!r} has {values.size} values for {size} samples", "metric_functions",
                              "return one per sample, or use " + ACCUMULATED)
        return values.reshape(-1).astype(np.int64)

    # Reduce

    def run_reduce(self):
        """After all workers have run_map()."""
        for name, _, kind in self.metrics:
            parts = [MMapIndexedDataset(self._part_path(name, part)) for part in range(self.num_workers * self.num_threads)]
            base = os.path.join(self.save_path, name, name)
            rows = [row for part in parts for row in part]
            if kind == ACCUMULATED:
                total = np.sum(np.stack(rows), axis=0)
                write_rows(base + "_metric_value", [total], int(total.min()), int(total.max()))
            else:
                self._write_index(base, np.concatenate(rows) if rows else np.empty(0, np.int64))
            for part in range(len(parts)):
                os.remove(index_file_path(self._part_path(name, part)))
                os.remove(data_file_path(self._part_path(name, part)))

    def _write_index(self, base, values):
        if len(values) != self._count():
            raise ConfigError(f"{len(values)} values of {self._count()} samples were found", base, "run_map() all workers again")
        samples = np.arange(len(values)) if self.sample_indices is None else np.asarray(self.sample_indices)
        order = np.argsort(values, kind="stable")
        unique, begins = np.unique(values[order], return_index=True)
        low, high, last = int(values.min()), int(values.max()), int(samples.max())
        write_rows(base + "_sample_to_metric", values[np.argsort(samples, kind="stable")][:, None], low, high)
        write_rows(base + "_index_to_metric", unique[:, None], low, high)
        write_rows(base + "_index_to_sample", np.split(samples[order], begins[1:]), 0, last)
        cuts = [len(order) * i // _PERCENTILES for i in range(1, _PERCENTILES)]
        merged = [row for row in np.split(samples[order], cuts) if row.size]
        write_rows(base + "_index_to_sample_percentile_merged", merged, 0, last)

    def run_map_reduce(self, comm_group=None):
        """Both, where every rank of a group is a worker."""
        self.run_map()
        if dist.is_initialized():
            dist.barrier(group=comm_group)
        if self.worker_id == 0:
            self.run_reduce()
        if dist.is_initialized():
            dist.barrier(group=comm_group)


class DistributedDataAnalyzer(DataAnalyzer):
    """One worker per rank of the process group."""

    def __init__(self, dataset, num_workers=1, num_threads=1, worker_id=0, batch_size=1, metric_names=(), metric_functions=(),
                 metric_types=(), save_path="./", collate_fn=None, device="cpu", comm_group=None, sample_indices=None):
        if dist.is_initialized():
            num_workers, worker_id = dist.get_world_size(comm_group), dist.get_rank(comm_group)
        super().__init__(dataset, num_workers=num_workers, worker_id=worker_id, num_threads=num_threads, batch_size=batch_size,
                         metric_names=metric_names, metric_functions=metric_functions, metric_types=metric_types,
                         save_path=save_path, collate_fn=collate_fn, sample_indices=sample_indices)
        self.comm_group = comm_group

    def run_map_reduce(self, comm_group=None):
        super().run_map_reduce(comm_group or self.comm_group)
