"""What DeepSpeedEngine saves and loads: state dicts, 16-bit weights, checkpoints."""

import json
import os
import shutil
import stat
from collections import OrderedDict

import torch
import torch.distributed as dist

import capstan
from capstan import _C
from capstan.durable_file import durable_file
from capstan.errors import ConfigError, IoError
from capstan.optimizers import KernelOptimizer
from deepspeed.checkpoint import constants
from deepspeed.runtime import checkpoint_state
from deepspeed.utils import zero_to_fp32
from deepspeed.utils.logging import logger


_EXTRA = "extra_states"  # of modules, beside the counters


class TagMismatch(ConfigError, AssertionError):
    """Ranks save under different tags, and checkpoint.tag_validation is Fail."""


def _checkpoint_parallel_metadata(mpu):
    """The degrees of parallelism as checkpoint files of DeepSpeed's layout note them."""

    def degree(*names):
        found = (getattr(mpu, name, None) for name in names)
        return next((get() for get in found if get is not None), 1)

    return {constants.CHECKPOINT_PARALLEL_DIMS: {
        constants.CHECKPOINT_PP_DEGREE: degree("get_pipe_parallel_world_size",
                                               "get_pipeline_model_parallel_world_size"),
        constants.CHECKPOINT_TP_DEGREE: degree("get_slice_parallel_world_size", "get_tensor_model_parallel_world_size",
                                               "get_model_parallel_world_size")}}


class EngineCheckpoints:

    def module_state_dict(self, destination=None, prefix="", keep_vars=False, exclude_frozen_parameters=False):
        with capstan.gathered(self.module):
            state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
            if self.zero_optimization_stage() == 3:
                state = type(state)((k, v.clone() if isinstance(v, torch.Tensor) else v) for k, v in state.items())
        if exclude_frozen_parameters:
            for name, param in self.module.named_parameters():
                if not param.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def load_module_state_dict(self, checkpoint, strict=True, custom_load_fn=None, fetch_z3_params=False):
        state = checkpoint.get("module", checkpoint)
        with capstan.gathered(self.module, modifier_rank=0):
            if custom_load_fn:
                custom_load_fn(src=state, dst=self.module)
            else:
                self.module.load_state_dict(state, strict=strict)

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        if not self.zero_optimization_partition_weights():
            raise ValueError("this function requires ZeRO-3 mode")
        state = self._consolidate(exclude_frozen_parameters)
        return state if dist.get_rank() == 0 else None

    def _consolidate(self, exclude_frozen_parameters):
        """Whole tensors on the CPU, gathered one at a time; tied names share one."""
        state, first = OrderedDict(), {}
        keep = dist.get_rank() == 0
        known = {id(p): n for n, p in self.module.named_parameters()}
        for name, value in self.module.state_dict(keep_vars=True).items():
            if not isinstance(value, torch.nn.Parameter):
                if keep:
                    state[name] = value.detach().cpu() if isinstance(value, torch.Tensor) else value
                continue
            if exclude_frozen_parameters and not value.requires_grad:
                continue
            owner = known.get(id(value), name)
            if owner not in first:
                whole = self.core.read_param(self.view.index[id(value)])
                first[owner] = whole.cpu() if keep else None
            if keep:
                state[name] = first[owner]
        return state

    def _consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        return self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)

    def save_16bit_model(self, save_dir, save_filename="pytorch_model.bin", exclude_frozen_parameters=False):
        """Rank 0 writes the weights, in the dtype that is trained, as one file. At stage 3 collective, whatever
        stage3_gather_16bit_weights_on_model_save says; a file that cannot be written is then an error on all ranks."""
        sharded = self.zero_optimization_partition_weights()
        state = (self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters) if sharded
                 else self.module_state_dict(exclude_frozen_parameters=exclude_frozen_parameters))
        path, error = os.path.join(save_dir, save_filename), None
        if dist.get_rank() == 0:
            try:
                os.makedirs(save_dir, exist_ok=True)
                with durable_file(path) as beside:
                    torch.save(state, beside)
            except (OSError, RuntimeError) as caught:  # torch's writer throws the latter
                error = caught
        if sharded and self.core_group.any(torch.tensor(error is not None, device=self.device)) or error is not None:
            raise IoError("the weights could not be written", path, "see the error of rank 0") from error
        return True

    save_fp16_model = save_16bit_model

    def save_checkpoint(self, save_dir, tag=None, client_state={}, save_latest=True, exclude_frozen_parameters=False):
        """Collective. The folder save_dir/<tag> holds safetensors files that any stage and world size can load."""
        if not save_dir:
            raise ValueError("save_checkpoint needs a folder, got an empty name")
        self._check_open()
        tag = f"global_step{self.global_steps}" if tag is None else str(tag)
        packer = checkpoint_state.Packer()
        client = packer.text(client_state, "client_state")
        counters = {name: getattr(self, name) for name in checkpoint_state.COUNTERS}
        counters[_EXTRA] = self._pack_extra_states(packer)
        schedule = packer.text(self._schedule_state(), "lr_scheduler")
        text = checkpoint_state.join(client, counters, self._group_state())
        try:
            self.core.save_checkpoint(str(save_dir), {
                "tag": tag, "client_state": text, "lr_scheduler": schedule, "save_latest": save_latest,
                "param_groups": self._stored_groups(), "exclude_frozen_parameters": exclude_frozen_parameters, "tensors": packer.tensors})
        except ConfigError as error:
            if error.where == "checkpoint.tag_validation":
                raise TagMismatch(error.what, error.where, error.fix) from None
            raise
        if self.zero_optimization() and dist.get_rank() == 0:
            self._copy_recovery_script(save_dir)
        return True

    def _copy_recovery_script(self, save_path):
        """A script beside the checkpoints that makes whole fp32 weights of them."""
        script = os.path.join(save_path, "zero_to_fp32.py")
        with durable_file(script) as beside:
            shutil.copyfile(zero_to_fp32.__file__, beside)
        self._change_recovery_script_permissions(script)

    def _change_recovery_script_permissions(self, dst):
        try:
            os.chmod(dst, os.stat(dst).st_mode | stat.S_IEXEC)
        except OSError as error:  # some file systems have no permissions
            logger.info(f"{dst} could not be made executable: {error}")

    def _get_optimizer_ckpt_name(self, checkpoints_path, tag, expp_rank):
        """Where DeepSpeed's layout keeps the optimizer of an expert-parallel rank."""
        return os.path.join(checkpoints_path, str(tag), f"expp_rank_{expp_rank}_mp_rank_00_optim_states.pt")

    def _get_zero_param_shapes(self):
        """Trained parameters by group, name -> shape, in the order of the groups."""
        shapes = {name: param.ds_shape if hasattr(param, "ds_shape") else param.shape
                  for name, param in self.module.named_parameters()}
        return [OrderedDict((name, torch.Size(shapes[name])) for name in names) for names in self.group_names]

    def load_checkpoint(self, load_dir, tag=None, load_module_strict=True, load_optimizer_states=True,
                        load_lr_scheduler_states=True, load_module_only=False, custom_load_fn=None):
        """(folder, client_state), or (None, None) where there is none. Collective."""
        self._check_open()
        loaded = self.core.load_checkpoint(str(load_dir), {
            "tag": "" if tag is None else str(tag), "load_module_strict": load_module_strict and custom_load_fn is None,
            "load_optimizer_states": load_optimizer_states, "load_lr_scheduler_states": load_lr_scheduler_states,
            "load_module_only": load_module_only})
        if loaded is None:
            logger.warning(f"Unable to find a checkpoint in {load_dir}")
            return None, None
        folder, text, schedule, skipped = loaded
        stored = _C.StoredCheckpoint(*os.path.split(folder))
        if custom_load_fn is not None:
            self.load_module_state_dict(self._stored_weights(stored), custom_load_fn=custom_load_fn)
        else:
            for line in skipped:
                logger.warning(line)
        client, counters, groups = checkpoint_state.split(text, stored)
        self._set_extra_states(counters.pop(_EXTRA, {}))
        if not load_module_only:
            counters = counters or self._core_counters()
            for name, value in counters.items():
                setattr(self, name, value)
            if load_optimizer_states:
                self._set_group_state(groups or self._groups_of(stored))
                if isinstance(self.basic_optimizer, KernelOptimizer):
                    self.basic_optimizer.note_steps(self.core.optimizer_steps)
            if load_lr_scheduler_states and self.lr_scheduler is not None:
                state = checkpoint_state.unpack(schedule, lambda name: stored.read(checkpoint_state.TENSORS, name))
                if state is not None:
                    self.lr_scheduler.load_state_dict(state)
        self.loaded_checkpoint_tag = tag
        return folder, client

    def _modules_with_extra_state(self):
        return {name: module for name, module in self.module.named_modules()
                if type(module).get_extra_state is not torch.nn.Module.get_extra_state}

    def _pack_extra_states(self, packer):
        """What modules keep beside parameters and buffers (get_extra_state), as far as a checkpoint can hold it."""
        packed = {}
        for name, module in self._modules_with_extra_state().items():
            try:
                packed[name] = json.loads(packer.text(module.get_extra_state(), f"the extra state of '{name}'"))
            except ConfigError as error:
                logger.warning(f"not saved: {error.where}: {error.what}")
        return packed

    def _set_extra_states(self, states):
        modules = self._modules_with_extra_state()
        for name, state in states.items():
            if name in modules:
                modules[name].set_extra_state(state)

    def _stored_weights(self, stored):
        """The module's state dict as it was saved, whole."""
        state = OrderedDict((name, stored.read("model", name)) for name in stored.names("model"))
        state.update((name, state[owner]) for name, owner in stored.aliases.items() if owner in state)
        return state

    def _core_counters(self):
        """Of a checkpoint that no Python engine wrote."""
        progress = self.core.progress
        return {"global_steps": progress.steps, "global_samples": progress.samples, "skipped_steps": progress.skipped,
                "micro_steps": progress.micro_steps}

    def _get_ckpt_name(self, checkpoints_path, tag, mp_placeholder=None):
        return os.path.join(checkpoints_path, str(tag), "model.safetensors")

    def _schedule_state(self):
        return None if self.lr_scheduler is None else self.lr_scheduler.state_dict()

    def _group_state(self):
        """Hyper-parameters of each group that are plain values."""
        groups = [] if self.basic_optimizer is None else self.basic_optimizer.param_groups
        return [{key: value for key, value in group.items()
                 if key != "params" and isinstance(value, (int, float, bool, str, list, tuple, type(None)))}
                for group in groups]

    def _stored_groups(self):
        """(names, numbers) of each group, as every reader of a checkpoint understands them."""
        groups = [] if self.basic_optimizer is None else self.basic_optimizer.param_groups
        stored = []
        for names, group in zip(self.group_names, groups):
            numbers = {key: float(group[key]) for key in ("lr", "eps", "weight_decay", "momentum") if key in group}
            numbers.update(zip(("beta1", "beta2"), map(float, group.get("betas", ()))))
            if names:
                stored.append((names, numbers))
        return stored

    def _groups_of(self, stored):
        """Hyper-parameters for each of our groups from a checkpoint that no Python engine wrote."""
        groups = [] if self.basic_optimizer is None else self.basic_optimizer.param_groups
        saved = {name: numbers for names, numbers in stored.param_groups for name in names}
        result = []
        for names, group in zip(self.group_names, groups):
            numbers = dict(saved.get(names[0], {})) if names else {}
            if "beta1" in numbers and "beta2" in numbers:
                numbers["betas"] = (numbers["beta1"], numbers["beta2"])
            result.append({key: value for key, value in numbers.items() if key in group})
        return result

    def _set_group_state(self, groups):
        for group, saved in zip(self.basic_optimizer.param_groups if self.basic_optimizer else [], groups):
            group.update({key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()})
