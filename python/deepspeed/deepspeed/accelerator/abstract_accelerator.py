"""What every accelerator offers: the memory, streams and generators of one kind of device."""

import contextlib

import torch


class DeepSpeedAccelerator:
    """Written for a CPU; accelerators with devices of their own replace what differs."""

    _name = "cpu"
    _communication_backend_name = "gloo"

    def device_name(self, device_index=None):
        return self._name

    def device(self, device_index=None):
        return torch.device(self.device_name(device_index))

    def current_device(self):
        return 0

    def current_device_name(self):
        return self.device_name(self.current_device())

    def communication_backend_name(self):
        return self._communication_backend_name

    def communication_backend_version(self):
        return None

    def is_synchronized_device(self):
        return True

    def use_host_timers(self):
        return self.is_synchronized_device()

    def resolves_data_dependency(self):
        return self.is_synchronized_device()

    def handles_memory_backpressure(self):
        return self.is_synchronized_device()

    def is_triton_supported(self):
        return False

    def is_bf16_supported(self):
        return True

    def is_fp16_supported(self):
        return True

    def is_fp8_supported(self):
        return False

    def supported_dtypes(self):
        return [torch.float, torch.half, torch.bfloat16]

    def amp(self):
        return torch.amp

    def random(self):
        return torch.random

    def manual_seed(self, seed):
        return torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        return torch.manual_seed(seed)

    def initial_seed(self):
        return torch.initial_seed()

    def default_generator(self, device_index):
        return torch.default_generator

    def get_rng_state(self, device_index=None):
        return torch.get_rng_state()

    def set_rng_state(self, state, device_index=None):
        return torch.set_rng_state(state)

    def synchronize(self, device_index=None):
        pass

    def empty_cache(self):
        pass

    def pin_memory(self, tensor, align_bytes=1):
        return tensor

    def is_pinned(self, tensor):
        return tensor.is_pinned()

    def lazy_call(self, callback):
        return callback()

    def range_push(self, message):
        pass

    def range_pop(self):
        pass

    def is_graph_capturing(self):
        return False

    @property
    def Stream(self):
        return None

    def stream(self, stream):
        return contextlib.nullcontext()

    def current_stream(self, device_index=None):
        return None

    def default_stream(self, device_index=None):
        return None

    @property
    def Event(self):
        return None

    def get_compile_backend(self):
        return "inductor"

    def set_compile_backend(self, backend):
        pass

    def op_builder_dir(self):
        return "deepspeed.ops.op_builder"

    def get_op_builder(self, name):
        import deepspeed.ops.op_builder as builders
        return getattr(builders, name, builders.NotImplementedBuilder)

    def create_op_builder(self, name):
        return self.get_op_builder(name)()

    def build_extension(self):
        from torch.utils.cpp_extension import BuildExtension
        return BuildExtension

    def export_envs(self):
        return []

    def visible_devices_envs(self):
        return ["CUDA_VISIBLE_DEVICES"]

    def set_visible_devices_envs(self, environment, local_ids):
        for name in self.visible_devices_envs():
            environment[name] = ",".join(map(str, local_ids))

    def temperature(self):
        return None

    def power_draw(self):
        return None

    def utilization(self):
        return None
