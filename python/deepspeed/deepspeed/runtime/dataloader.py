"""Loaders that give each rank its share of the data."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler


class RepeatingLoader:
    """Starts again when the loader ends."""

    def __init__(self, loader):
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self):
        return self

    def __len__(self):
        return len(self.loader)

    def __next__(self):
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


class DeepSpeedDataLoader:

    def __init__(self, dataset, batch_size, group=None, route="train", data_sampler=None, collate_fn=None, workers=0,
                 drop_last=False, local_rank=0, seed=None, pin_memory=False, **unused):
        self.dataset, self.batch_size, self.post_process_func = dataset, batch_size, None
        # One that gives micro-batches, and wants to know which of them the loop was given.
        self.curriculum_sampler = data_sampler if hasattr(data_sampler, "note_handed") else None
        if data_sampler is None and not isinstance(dataset, torch.utils.data.IterableDataset):
            if route == "train":
                chosen = {} if seed is None else {"seed": seed}
                data_sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(group),
                                                  rank=dist.get_rank(group), **chosen)
            else:
                data_sampler = RandomSampler(dataset)
        self.data_sampler = data_sampler
        batches = ({"batch_sampler": data_sampler} if self.curriculum_sampler is not None
                   else {"batch_size": batch_size, "sampler": data_sampler, "drop_last": drop_last})
        self.dataloader = DataLoader(dataset, collate_fn=collate_fn, num_workers=workers, pin_memory=pin_memory, **batches)
        self.len = len(self.dataloader) if hasattr(dataset, "__len__") and self.curriculum_sampler is None else 0
        if self.curriculum_sampler is not None:
            self.len = data_sampler.micro_batches

    def __iter__(self):
        self._iterator = iter(self.dataloader)
        return self

    def __next__(self):
        batch = next(self._iterator)
        if self.curriculum_sampler is not None:
            if self.post_process_func is not None:
                batch = self.post_process_func(batch, self.curriculum_sampler.state_dict())
            self.curriculum_sampler.note_handed()
        return batch

    def __len__(self):
        return self.len
