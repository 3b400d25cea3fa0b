"""What DeepSpeedEngine saves and loads: state dicts, 16-bit weights, checkpoints."""

import os
import shutil
import stat
from collections import OrderedDict

import torch
import torch.distributed as dist

import capstan
from capstan.durable_file import durable_file
from capstan.errors import ConfigError
from deepspeed.checkpoint import constants
from deepspeed.utils import zero_to_fp32
from deepspeed.utils.logging import logger


class TagMismatch(ConfigError, AssertionError):
    """Ranks save under different tags, and checkpoint.tag_validation is Fail."""


def _checkpoint_parallel_metadata(mpu):
    """The degrees of parallelism as checkpoint files of DeepSpeed's layout note them."""

    def degree(*names):
        found = (getattr(mpu, name, None) for name in names)
        return next((get() for get in found if get is not None), 1)

    # Where sequences are shared, that name stands for the ranks that do.
    any_axis = () if hasattr(mpu, "get_sequence_parallel_world_size") else ("get_model_parallel_world_size",)
    return {constants.CHECKPOINT_PARALLEL_DIMS: {
        constants.CHECKPOINT_PP_DEGREE: degree("get_pipe_parallel_world_size",
                                               "get_pipeline_model_parallel_world_size"),
        constants.CHECKPOINT_TP_DEGREE: degree("get_slice_parallel_world_size", "get_tensor_model_parallel_world_size",
                                               *any_axis)}}


class EngineCheckpoints:

    def module_state_dict(self, destination=None, prefix="", keep_vars=False, exclude_frozen_parameters=False):
        self._refuse_parts("module_state_dict()", "call save_16bit_model(), save_pretrained() or "
                           "_consolidated_16bit_state_dict() on all ranks")
        with capstan.gathered(self.module):
            state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
            if self.zero_optimization_partition_weights():
                state = type(state)((k, v.clone() if isinstance(v, torch.Tensor) else v) for k, v in state.items())
        if exclude_frozen_parameters:
            for name, param in self.module.named_parameters():
                if not param.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def load_module_state_dict(self, checkpoint, strict=True, custom_load_fn=None, fetch_z3_params=False):
        self._refuse_parts("load_module_state_dict()", "load a checkpoint without custom_load_fn; load_module_only takes a folder "
                           "of transformers, too")
        state = checkpoint.get("module", checkpoint)
        with capstan.gathered(self.module, modifier_rank=0):
            if custom_load_fn:
                custom_load_fn(src=state, dst=self.module)
            else:
                self.module.load_state_dict(state, strict=strict)

    def _refuse_parts(self, where, fix):
        if self.tensor_ranks is not None:
            raise ConfigError(f"the model is split between {self.tensor_ranks.size} ranks, so a state dict would have parts of its "
                              "weights", where, fix)

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        if not self.zero_optimization_partition_weights():
            raise ValueError("this function requires ZeRO-3 mode")
        return self.whole_weights(exclude_frozen_parameters)

    def _consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        if self.tensor_ranks is not None:
            return self.whole_weights(exclude_frozen_parameters)
        return self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)

    def _is_first(self):
        return dist.get_rank() == 0

    def save_16bit_model(self, save_dir, save_filename="pytorch_model.bin", exclude_frozen_parameters=False):
        """Rank 0 writes the weights, in the dtype that is trained, as one file. At stage 3 and with tensor
        ranks collective, whatever stage3_gather_16bit_weights_on_model_save says; a file that cannot be written is then an error on all ranks."""
        sharded = self.zero_optimization_partition_weights() or self.tensor_ranks is not None
        weights = self.whole_weights if sharded else self.module_state_dict
        self._write_weights(weights(exclude_frozen_parameters=exclude_frozen_parameters),
                            os.path.join(save_dir, save_filename), together=sharded)
        return True

    save_fp16_model = save_16bit_model

    def save_checkpoint(self, save_dir, tag=None, client_state={}, save_latest=True, exclude_frozen_parameters=False):
        """Collective. The folder save_dir/<tag> holds safetensors files that any stage and world size can load."""
        if not save_dir:
            raise ValueError("save_checkpoint needs a folder, got an empty name")
        tag = f"global_step{self.global_steps}" if tag is None else tag
        try:
            super().save_checkpoint(str(save_dir), tag, client_state, save_latest=save_latest,
                                    exclude_frozen_parameters=exclude_frozen_parameters)
        except ConfigError as error:
            if error.where == "checkpoint.tag_validation":
                raise TagMismatch(error.what, error.where, error.fix) from None
            raise
        if self.zero_optimization() and dist.get_rank() == 0:
            self._copy_recovery_script(save_dir)
        return True

    def _counters(self):
        return {name: getattr(self, name) for name in super()._counters()}

    def _set_counters(self, counters):
        """The core has its own back, and a step begins there; those that a script may have set are as it left them."""
        progress = self._progress()
        for name, field in (("global_steps", "steps"), ("skipped_steps", "skipped"), ("global_samples", "samples"),
                            ("micro_steps", "step_calls")):
            setattr(progress, field, counters.get(name, getattr(progress, field)))
        self._set_progress(progress)

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
        def load_custom(stored):
            self.load_module_state_dict(self._stored_weights(stored), custom_load_fn=custom_load_fn)

        loaded = self._load(str(load_dir), {
            "tag": "" if tag is None else str(tag), "load_module_strict": load_module_strict and custom_load_fn is None,
            "load_optimizer_states": load_optimizer_states, "load_lr_scheduler_states": load_lr_scheduler_states,
            "load_module_only": load_module_only}, load_custom if custom_load_fn is not None else None)
        if loaded is None:
            logger.warning(f"Unable to find a checkpoint in {load_dir}")
            return None, None
        self.loaded_checkpoint_tag = tag
        return tuple(loaded)

    @staticmethod
    def _stored_weights(stored):
        """The module's state dict as it was saved, whole."""
        state = OrderedDict((name, stored.read("model", name)) for name in stored.names("model"))
        state.update((name, state[owner]) for name, owner in stored.aliases.items() if owner in state)
        return state

    def _get_ckpt_name(self, checkpoints_path, tag, mp_placeholder=None):
        return os.path.join(checkpoints_path, str(tag), "model.safetensors")
