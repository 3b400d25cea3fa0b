"""Ranks on the cores of the host."""

import os

import torch

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator


class CPU_Accelerator(DeepSpeedAccelerator):

    def is_available(self):
        return True

    def device_count(self):
        return int(os.environ.get("LOCAL_SIZE", 0)) or max(1, len(os.sched_getaffinity(0)))

    def set_device(self, device_index):
        pass

    def current_device(self):
        return int(os.environ.get("LOCAL_RANK", 0))

    def on_accelerator(self, tensor):
        return tensor.device.type == "cpu"

    def device(self, device_index=None):
        return torch.device("cpu")

    def current_device_name(self):
        return "cpu"

    def _resident(self):
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def memory_allocated(self, device_index=None):
        return self._resident()

    def max_memory_allocated(self, device_index=None):
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def reset_max_memory_allocated(self, device_index=None):
        pass

    memory_reserved = memory_cached = memory_allocated
    max_memory_reserved = max_memory_cached = max_memory_allocated
    reset_max_memory_cached = reset_peak_memory_stats = reset_max_memory_allocated

    def memory_stats(self, device_index=None):
        return {"allocated_bytes.all.current": self._resident()}

    def total_memory(self, device_index=None):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def available_memory(self, device_index=None):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    FloatTensor = torch.FloatTensor
    HalfTensor = torch.HalfTensor
    BFloat16Tensor = torch.BFloat16Tensor
    DoubleTensor = torch.DoubleTensor
    ByteTensor = torch.ByteTensor
    IntTensor = torch.IntTensor
    LongTensor = torch.LongTensor
