"""State dicts as files of torch.save."""

import torch

from capstan.durable_file import durable_file
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine


class TorchCheckpointEngine(CheckpointEngine):

    def create(self, info):
        """Nothing to prepare."""

    def save(self, state_dict, path):
        """A file is there whole or not at all."""
        with durable_file(path) as beside:
            torch.save(state_dict, beside)

    def load(self, path, map_location=None):
        return torch.load(path, map_location=map_location, weights_only=False)

    def commit(self, info):
        return True
