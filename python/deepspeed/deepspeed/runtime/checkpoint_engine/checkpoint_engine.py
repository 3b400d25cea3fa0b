"""What a writer of state dicts can do."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass
class CheckpointCommitInfo:
    """Which checkpoint a file is a part of."""

    tag: object = None
    save_dir: object = None
    save_latest: object = None


class CheckpointEngine(ABC):

    def __init__(self, config_params=None):
        self.name = type(self).__name__

    @abstractmethod
    def create(self, info):
        """A checkpoint begins."""

    @abstractmethod
    def save(self, state_dict, path):
        """Writes one file."""

    @abstractmethod
    def load(self, path, map_location=None):
        """Reads one."""

    @abstractmethod
    def commit(self, info):
        """All files of a checkpoint are there."""

    def makedirs(self, path, exist_ok=False):
        os.makedirs(path, exist_ok=exist_ok)
