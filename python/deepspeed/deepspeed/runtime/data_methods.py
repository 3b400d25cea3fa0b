"""What DeepSpeedEngine says of curricula, dropped layers and dropped tokens."""

import torch.distributed as dist

from capstan import _C, curriculum
from capstan.errors import ConfigError
from deepspeed.runtime.progressive_layer_drop import ProgressiveLayerDrop

_ROUTING = "data_efficiency.data_routing"
_RANDOM_LTD = f"{_ROUTING}.random_ltd"
_SAMPLING = "data_efficiency.data_sampling"
_CURRICULUM = f"{_SAMPLING}.curriculum_learning"


def _enabled(view, *sections):
    return all(view.value(f"{section}.enabled") for section in ("data_efficiency", *sections))


def metrics_of(view):
    """metric -> its section, with the names that the configuration has given."""
    base = f"{_CURRICULUM}.curriculum_metrics"
    return {name: {**view.section(f"{base}.{name}"), "schedule_config": view.section(f"{base}.{name}.schedule_config")}
            for name in view.names_below(base) if not name.endswith(".schedule_config")}


class DataMethods:
    """Mixed into DeepSpeedEngine."""

    def _check_pipeline(self):
        super()._check_pipeline()
        if self.is_pipeline:
            view = self._config.view
            curriculum.check_pipeline(**{_RANDOM_LTD: _enabled(view, _ROUTING, _RANDOM_LTD), _SAMPLING: _enabled(view, _SAMPLING)})

    def _make_data_parts(self):
        self.random_ltd_scheduler, self._drops_tokens, self._curriculum_sampler = None, False, None
        self._sampler_state = None  # of a checkpoint that was loaded before there was a sampler
        if _enabled(self._config.view, _ROUTING, _RANDOM_LTD):
            if self.sequence_parallel_size > 1:
                raise ConfigError("tokens cannot be dropped where ranks have parts of the same sequences", _RANDOM_LTD,
                                  "leave out sequence_parallel_size, or random_ltd")
            from deepspeed.runtime.data_pipeline.data_routing.scheduler import RandomLTDScheduler
            self.random_ltd_scheduler = RandomLTDScheduler(self.random_ltd_config())

    # Random layer token drop

    def random_ltd_enabled(self):
        return self.random_ltd_scheduler is not None

    def random_ltd_config(self):
        """The section as a dict, with the samples of a step."""
        view, plan = self._config.view, f"{_RANDOM_LTD}.random_ltd_schedule"
        return {**view.section(_RANDOM_LTD), "global_batch_size": self.train_batch_size(),
                "random_ltd_schedule": {**view.section(plan), "schedule_config": view.section(f"{plan}.schedule_config")}}

    def random_ltd_initialize(self):
        """After convert_to_random_ltd(): the layers that the configuration names drop tokens from now on."""
        from deepspeed.runtime.data_pipeline.data_routing.helper import number_layers
        if self.random_ltd_scheduler is None:
            return
        plan, layers = self.random_ltd_config(), dict(number_layers(self.module))
        wanted = [int(number) for number in plan["random_ltd_layer_id"] or ()]
        missing = sorted(set(wanted) - set(layers))
        if missing or len(set(wanted)) != len(wanted) or len(wanted) != plan["random_ltd_layer_num"]:
            raise ConfigError(f"random_ltd_layer_num is {plan['random_ltd_layer_num']} and random_ltd_layer_id {wanted}; the model's "
                              f"layers are {sorted(layers)}", _RANDOM_LTD, "list the numbers of so many different layers")
        for number in wanted:
            layers[number].init_config(plan, self.random_ltd_scheduler, number, self._token_seed)
        self._drops_tokens = True

    def _token_seed(self, layer):
        """Of the tokens that a layer sees in this forward; the same again where its activations are recomputed."""
        seed = self._config.view.value("data_efficiency.seed")
        for number in (dist.get_rank(self.data_parallel_group), self.global_steps, self.micro_steps, layer):
            seed = _C.derive_seed(seed, number)
        return seed

    def _step_keywords(self):
        if self.random_ltd_scheduler is not None:
            if not self._drops_tokens:
                raise ConfigError("no layer drops tokens yet", _RANDOM_LTD,
                                  "call convert_to_random_ltd(engine, LayerClass) after initialize()")
            self.random_ltd_scheduler.update_seq(self.global_steps)
        return super()._step_keywords()

    # Samples by difficulty

    def curriculum_learning_enabled(self):
        return _enabled(self._config.view, _SAMPLING)

    def _curriculum_loader(self, dataset, batch_size, collate_fn):
        """Not for batches of another size: a step's samples are drawn together."""
        from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler
        from deepspeed.runtime.dataloader import DeepSpeedDataLoader
        micro, view = self.train_micro_batch_size_per_gpu(), self._config.view
        if batch_size not in (None, micro):
            raise ConfigError(f"batches of {batch_size}, but micro-batches have {micro} samples", "deepspeed_io",
                              "leave out batch_size, or data_sampling")
        if not hasattr(dataset, "__len__"):
            raise ConfigError(f"a {type(dataset).__name__} has no length", _SAMPLING, "give a data set with samples by number")
        sampling = {**view.section(_SAMPLING), "curriculum_learning": {**view.section(_CURRICULUM), "curriculum_metrics": metrics_of(view)}}
        sampler = DeepSpeedDataSampler({"seed": view.value("data_efficiency.seed"), "data_sampling": sampling}, len(dataset), micro,
                                       dist.get_rank(self.data_parallel_group), self.dp_world_size,
                                       gradient_accumulation_steps=self.gradient_accumulation_steps())
        if self._sampler_state is not None:
            sampler.load_state_dict(self._sampler_state)
        self._curriculum_sampler = sampler
        return DeepSpeedDataLoader(dataset, micro, data_sampler=sampler, collate_fn=collate_fn, workers=sampling["num_workers"],
                                   pin_memory=sampling["pin_memory"])

    def set_data_post_process_func(self, post_process_func):
        """function(batch, state of the sampler) -> batch, for each batch of the training data."""
        if self.training_dataloader is not None:
            self.training_dataloader.post_process_func = post_process_func

    # What is saved

    def _data_parts(self):
        parts = {"random_ltd": self.random_ltd_scheduler, "data_sampler": self._curriculum_sampler}
        return {name: part for name, part in parts.items() if part is not None}

    def _counters(self):
        return {**super()._counters(), **{name: part.state_dict() for name, part in self._data_parts().items()}}

    def _set_counters(self, counters):
        parts, self._sampler_state = self._data_parts(), counters.get("data_sampler")
        for name in ("random_ltd", "data_sampler"):
            state = counters.pop(name, None)
            if state is not None and name in parts:
                parts[name].load_state_dict(state)
        super()._set_counters(counters)

    # Curriculum and layer drop

    @property
    def curriculum_scheduler_legacy(self):
        return self.curriculum

    def curriculum_params_legacy(self):
        return self._config.view.section("curriculum_learning")

    def set_custom_curriculum_learning_schedule(self, schedule_func_dict):
        """Functions from the number of a step to a difficulty: one for the section curriculum_learning, or a dict of them by
        metric for data_sampling."""
        if callable(schedule_func_dict) and self.curriculum is not None:
            self.curriculum.set_custom_get_difficulty(schedule_func_dict)
        elif self._curriculum_sampler is not None:
            self._curriculum_sampler.set_custom_curriculum_learning_schedule(schedule_func_dict)

    @property
    def progressive_layer_drop(self):
        """As it stands for the next step."""
        if self.layer_drop is None:
            return None
        drop = ProgressiveLayerDrop(self.layer_drop.theta, self.layer_drop.gamma)
        drop.current_theta = self.layer_drop.of_step(self.global_steps + 1)
        return drop

    def pld_params(self):
        return {key: value for key, value in self._config.view.section("progressive_layer_drop").items() if key != "enabled"}

    def pld_theta(self):
        return self._config.view.value("progressive_layer_drop.theta")

    def pld_gamma(self):
        return self._config.view.value("progressive_layer_drop.gamma")

    def get_pld_theta(self):
        """Of the next step; None without progressive layer drop."""
        drop = self.progressive_layer_drop
        return None if drop is None else drop.get_theta()
