"""Which ranks train with an engine, how many share what, and on which device each of them works."""

import torch
import torch.distributed as dist

from capstan import params as sharded_params
from capstan.tensor_layers import with_parts
from deepspeed.runtime import tensor_parallel
from deepspeed.utils import groups


class EngineRanks:

    def _place(self, model, dont_change_device):
        from deepspeed.accelerator import get_accelerator
        self.device = torch.device(get_accelerator().current_device_name())
        self.local_rank = get_accelerator().current_device()
        if not dont_change_device and self.device.type != "cpu":
            self._move(model)
        self.global_rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.seq_dp_world_size = dist.get_world_size(self.seq_data_parallel_group)
        self.mp_world_size = self.world_size // self.seq_dp_world_size
        self.checkpoint_mp_rank = self._place_in_model()
        self.sequence_parallel_size = self._config.view.value("sequence_parallel_size")
        self.dp_world_size = self.seq_dp_world_size // self.sequence_parallel_size
        groups.follow(self)

    def _move(self, model):
        """To our device, all but what is sharded: that comes when the engine takes it."""
        if not any(sharded_params.handle_of(p) is not None for p in model.parameters()):
            model.to(self.device)
            return
        for tensor in (*model.parameters(), *model.buffers()):
            if sharded_params.handle_of(tensor) is None:
                tensor.data = tensor.data.to(self.device)

    def _split(self, config, group, optimizer):
        if tensor_parallel.size_of(self.mpu) > 1 and not self.is_pipeline:  # by layers of its own
            tensor_parallel.adopt(self.module, self.mpu)
        super()._split(config, group, optimizer)

    def _place_in_model(self):
        """Among the ranks that have parts of one model."""
        if self.tensor_ranks is not None:
            return self.tensor_ranks.rank
        return 0 if self.mp_world_size == 1 else self.mpu.get_model_parallel_rank()

    def autotp_size(self):
        return 0 if self.tensor_ranks is None else self.tensor_ranks.size

    @staticmethod
    def _with_parts(parameters):
        """Parameters or groups of them, which tensor ranks may have cut."""
        if not any(isinstance(each, dict) for each in parameters):
            return with_parts(parameters)
        return [{**group, "params": with_parts(sharded_params.flat_list(group["params"]))} for group in parameters]

    def _ranks(self):
        """All that train this model, and how they share it (None: as the configuration says)."""
        return self.all_ranks, None

    # Groups are not kept: a program that destroys its groups must be rid of them.

    @property
    def all_ranks(self):
        """Those that train together."""
        return groups.training_group(self.mpu)

    @property
    def seq_data_parallel_group(self):
        """Of them, the ranks with the same parameters as this one."""
        return groups.peers(self.all_ranks, max(1, self.autotp_size()))

    @property
    def data_parallel_group(self):
        """Of those, the ranks with other data."""
        return groups.data_group(self.seq_data_parallel_group, self.sequence_parallel_size)

    @property
    def seq_parallel_group(self):
        """The ranks with other parts of the same sequences; None where nobody shares any."""
        return groups.sequence_group(self.seq_data_parallel_group, self.sequence_parallel_size)
