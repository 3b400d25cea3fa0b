"""Batches whose sequences are shared by ranks."""

import collections

import torch
import torch.distributed as dist

from capstan import sequence_parallel


class UlyssesSPDataLoaderAdapter:
    """Every rank's batches, one after the other, each cut along the sequence over the ranks of `sp_group`.

    Batches are dictionaries with input_ids, position_ids and labels, [batch, sequence, ...]; what is no tensor goes to all
    ranks. labels become shift_labels, moved by one before they are cut, because the next token may be on the next rank.
    All ranks end when the first one has no more.
    """

    def __init__(self, dl, sp_rank, sp_group, sp_world_size, device):
        self.dl, self.device = dl, device
        self.sp_rank, self.sp_group, self.sp_world_size = sp_rank, sp_group, sp_world_size
        self.iter = iter(dl)
        self.micro_batches = collections.deque()

    def __len__(self):
        return len(self.dl) * self.sp_world_size

    def __iter__(self):
        return self

    def __next__(self):
        if not self.micro_batches:
            self.refill()
        return self.micro_batches.popleft()

    def refill(self):
        """Collective: one batch of each rank."""
        mine = next(self.iter, None)
        if mine is not None:
            mine = {key: value.cpu() if torch.is_tensor(value) else value for key, value in mine.items()}
        everybodys = [None] * self.sp_world_size
        dist.all_gather_object(everybodys, mine, group=self.sp_group)
        if any(batch is None for batch in everybodys):
            self.iter = iter(self.dl)
            raise StopIteration
        self.micro_batches.extend(self._part_of(batch) for batch in everybodys)

    def _part_of(self, batch):
        if "position_ids" not in batch:
            raise ValueError("sequence parallelism needs `position_ids` in every batch, so that a token keeps its place in the "
                             "whole sequence: torch.arange(length) of each sample, or of each document of a packed one")
        length = batch["input_ids"].shape[1]
        sequence_parallel.part_length(length, self.sp_world_size)
        if "labels" in batch:
            labels = batch.pop("labels")
            batch["shift_labels"] = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        for key, value in batch.items():
            if torch.is_tensor(value) and (value.dim() < 2 or value.shape[1] != length):
                raise ValueError(f"{key} is {list(value.shape)}, which has no sequence of {length} as input_ids has")
        return {key: value.chunk(self.sp_world_size, 1)[self.sp_rank].contiguous() if torch.is_tensor(value) else value
                for key, value in batch.items()}
