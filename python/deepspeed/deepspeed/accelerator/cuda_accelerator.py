"""NVIDIA GPUs, one per rank."""

import functools

import torch

from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator


class CUDA_Accelerator(DeepSpeedAccelerator):
    _name = "cuda"
    _communication_backend_name = "nccl"

    def is_available(self):
        return torch.cuda.is_available()

    def device_name(self, device_index=None):
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def is_synchronized_device(self):
        return False

    def on_accelerator(self, tensor):
        return tensor.is_cuda

    def is_bf16_supported(self):
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported()

    def total_memory(self, device_index=None):
        return torch.cuda.get_device_properties(device_index or 0).total_memory

    def available_memory(self, device_index=None):
        return torch.cuda.mem_get_info(device_index)[0]

    def communication_backend_version(self):
        return torch.cuda.nccl.version()

    def default_generator(self, device_index):
        return torch.cuda.default_generators[device_index]

    def pin_memory(self, tensor, align_bytes=1):
        return tensor.pin_memory()

    @property
    def Stream(self):
        return torch.cuda.Stream

    @property
    def Event(self):
        return torch.cuda.Event

    FloatTensor = functools.partial(torch.tensor, dtype=torch.float, device="cuda")
    HalfTensor = functools.partial(torch.tensor, dtype=torch.half, device="cuda")
    BFloat16Tensor = functools.partial(torch.tensor, dtype=torch.bfloat16, device="cuda")
    DoubleTensor = functools.partial(torch.tensor, dtype=torch.double, device="cuda")
    ByteTensor = functools.partial(torch.tensor, dtype=torch.uint8, device="cuda")
    IntTensor = functools.partial(torch.tensor, dtype=torch.int, device="cuda")
    LongTensor = functools.partial(torch.tensor, dtype=torch.long, device="cuda")


def _forward(name):
    """The function of the same name in torch.cuda."""

    def call(self, *args, **kwargs):
        return getattr(torch.cuda, name)(*args, **kwargs)

    setattr(CUDA_Accelerator, name, call)


for _name in ("device_count", "set_device", "current_device", "synchronize", "empty_cache", "memory_allocated",
              "max_memory_allocated", "reset_max_memory_allocated", "memory_reserved", "max_memory_reserved",
              "memory_cached", "max_memory_cached", "reset_max_memory_cached", "reset_peak_memory_stats",
              "memory_stats", "manual_seed", "manual_seed_all", "initial_seed", "stream", "current_stream",
              "default_stream", "temperature", "power_draw", "utilization"):
    _forward(_name)


def _get_rng_state(self, device_index=None):
    return torch.cuda.get_rng_state() if device_index is None else torch.cuda.get_rng_state(device_index)


def _set_rng_state(self, state, device_index=None):
    if device_index is None:
        return torch.cuda.set_rng_state(state)
    return torch.cuda.set_rng_state(state, device_index)


CUDA_Accelerator.get_rng_state, CUDA_Accelerator.set_rng_state = _get_rng_state, _set_rng_state
