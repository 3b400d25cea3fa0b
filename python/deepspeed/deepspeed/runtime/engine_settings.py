"""Accessors of DeepSpeedEngine: one method per field of the configuration."""

from capstan.model_view import SHORT_NAMES

# method -> attribute of DeepSpeedConfig
PLAIN = {
    "train_batch_size": "train_batch_size",
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "log_level": "log_level",
    "steps_per_print": "steps_per_print",
    "wall_clock_breakdown": "wall_clock_breakdown",
    "memory_breakdown": "memory_breakdown",
    "dump_state": "dump_state",
    "optimizer_name": "optimizer_name",
    "optimizer_params": "optimizer_params",
    "optimizer_legacy_fusion": "optimizer_legacy_fusion",
    "scheduler_name": "scheduler_name",
    "scheduler_params": "scheduler_params",
    "zero_optimization": "zero_enabled",
    "zero_optimization_stage": "zero_optimization_stage",
    "zero_allow_untested_optimizer": "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer": "zero_force_ds_cpu_optimizer",
    "fp16_enabled": "fp16_enabled",
    "bfloat16_enabled": "bfloat16_enabled",
    "amp_enabled": "amp_enabled",
    "sparse_gradients_enabled": "sparse_gradients_enabled",
    "gradient_predivide_factor": "gradient_predivide_factor",
    "prescale_gradients": "prescale_gradients",
    "postscale_gradients": "prescale_gradients",
    "gradient_allreduce_op": "gradient_allreduce_op",
    "eigenvalue_enabled": "eigenvalue_enabled",
    "pld_enabled": "pld_enabled",
    "elasticity_enabled": "elasticity_enabled",
    "curriculum_enabled_legacy": "curriculum_enabled_legacy",
    "load_universal_checkpoint": "load_universal_checkpoint",
    "use_node_local_storage": "use_node_local_storage",
    "checkpoint_tag_validation_enabled": "checkpoint_tag_validation_enabled",
    "checkpoint_tag_validation_fail": "checkpoint_tag_validation_fail",
    "dataloader_drop_last": "dataloader_drop_last",
    "torch_autocast_enabled": "torch_autocast_enabled",
    "managed_gradient_accumulation": "managed_gradient_accumulation",
    "graph_harvesting": "graph_harvesting",
}

# method -> attribute of DeepSpeedZeroConfig
ZERO = {
    "zero_allgather_bucket_size": "allgather_bucket_size",
    "zero_allgather_partitions": "allgather_partitions",
    "zero_contiguous_gradients": "contiguous_gradients",
    "zero_elastic_checkpoint": "elastic_checkpoint",
    "zero_grad_hooks": "grad_hooks",
    "zero_hpz_partition_size": "zero_hpz_partition_size",
    "zero_ignore_unused_parameters": "ignore_unused_parameters",
    "zero_legacy_stage1": "legacy_stage1",
    "zero_load_from_fp32_weights": "load_from_fp32_weights",
    "zero_log_trace_cache_warnings": "log_trace_cache_warnings",
    "zero_max_live_parameters": "max_live_parameters",
    "zero_max_reuse_distance": "max_reuse_distance",
    "zero_model_persistence_threshold": "model_persistence_threshold",
    "zero_module_granularity_threshold": "module_granularity_threshold",
    "zero_multi_rank_bucket_allreduce": "use_multi_rank_bucket_allreduce",
    "zero_offload_optimizer": "offload_optimizer",
    "zero_offload_param": "offload_param",
    "zero_overlap_comm": "overlap_comm",
    "zero_param_persistence_threshold": "param_persistence_threshold",
    "zero_prefetch_bucket_size": "prefetch_bucket_size",
    "zero_quantized_gradients": "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights": "zero_quantized_nontrainable_weights",
    "zero_quantized_weights": "zero_quantized_weights",
    "zero_reduce_bucket_size": "reduce_bucket_size",
    "zero_reduce_scatter": "reduce_scatter",
    "zero_round_robin_gradients": "round_robin_gradients",
    "zero_sub_group_size": "sub_group_size",
    "mics_shard_size": "mics_shard_size",
}


# method -> key of the configuration
KEYS = {f"flops_profiler_{name}": f"flops_profiler.{name}"
        for name in ("enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed", "output_file")}


def _plain(attribute):
    return lambda self: getattr(self._config, attribute)


def _zero(attribute):
    return lambda self: getattr(self._config.zero_config, attribute)


def _key(path):
    return lambda self: self._config.view.value(path)


class EngineSettings:
    """Mixed into DeepSpeedEngine."""

    @property
    def communication_data_type(self):
        return self.core_config.reduce_dtype

    @property
    def flops_profiler(self):
        """What counted the step that flops_profiler names, on rank 0; None where nothing is asked for."""
        if self._profile is None:
            return None
        from deepspeed.profiling.flops_profiler import FlopsProfiler
        return FlopsProfiler(self.module, self, self.flops_profiler_recompute_fwd_factor())._take(self._profile.profile)

    def param_dtype_name(self):
        """As the configuration spells it."""
        return SHORT_NAMES[self._config.view.param_dtype]

    def zero_cpu_offload(self):
        return self._config.view.offloads_optimizer

    def zero_partial_offload(self):
        return self._config.view.value("zero_optimization.offload_optimizer.ratio")

    def zero_gather_16bit_weights_on_model_save(self):
        return self.core_config.value("zero_optimization.stage3_gather_16bit_weights_on_model_save")

    def zero_optimization_partition_gradients(self):
        return self._config.view.shards_gradients

    def zero_optimization_partition_weights(self):
        return self._config.view.shards_params

    def fp16_auto_cast(self):
        return self._config.view.value("fp16.auto_cast")

    def fp16_master_weights_and_gradients(self):
        return self._config.view.value("fp16.fp16_master_weights_and_grads")

    def bf16_optimizer_states(self):
        return self._config.view.value("bf16.bf16_optimizer_states")

    def loss_scale(self):
        return self._config.view.loss_scale

    def dynamic_loss_scale(self):
        return self._config.view.dynamic_loss_scale

    def initial_dynamic_scale(self):
        return self._config.float16_config.initial_dynamic_scale()

    def dynamic_loss_scale_args(self):
        return self._config.float16_config.dynamic_loss_scale_args()

    def get_batch_info(self):
        return self.train_batch_size(), self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()

    def get_data_types(self):
        from deepspeed.runtime.torch_autocast import dtype_of
        return self.param_dtype, dtype_of(self._config.grad_accum_dtype) or self.param_dtype

    def _mixed_precision_dtypes(self):
        """(dtype of the parameters or None, dtype of the buffers or None): None leaves them as they are."""
        import torch

        from deepspeed.runtime.torch_autocast import dtype_of
        params = self._config.view.param_dtype
        return None if params == torch.float32 else params, dtype_of(self._config.buffer_dtype)

    def _assert_valid_mixed_precision_config(self):
        from deepspeed.runtime.torch_autocast import dtype_of
        asked, used = dtype_of(self._config.param_dtype), self._config.view.param_dtype
        assert asked is None or asked == used, (
            f"data_types.param_dtype is {self._config.param_dtype}, but bf16 and fp16 ask for {used}")

    def _cast_module_mixed_precision(self, param_dtype, buffer_dtype, is_zero_init_model):
        for param in self.module.parameters():
            if param_dtype is not None and not is_zero_init_model and param.is_floating_point():
                param.data = param.data.to(param_dtype)
        for module in self.module.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer_dtype is not None and buffer.is_floating_point():
                    module._buffers[name] = buffer.to(buffer_dtype)


for _name, _attribute in PLAIN.items():
    setattr(EngineSettings, _name, _plain(_attribute))
for _name, _attribute in ZERO.items():
    setattr(EngineSettings, _name, _zero(_attribute))
for _name, _path in KEYS.items():
    setattr(EngineSettings, _name, _key(_path))
EngineSettings.postscale_gradients = lambda self: not self._config.prescale_gradients
