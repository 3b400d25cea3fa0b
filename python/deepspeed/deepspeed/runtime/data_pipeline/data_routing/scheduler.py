"""How many tokens random-LTD keeps from step to step, and how many all layers have seen."""

import json

from capstan import _C
from capstan.errors import ConfigError

_NEEDED = ("total_layer_num", "random_ltd_layer_num", "min_value", "max_value", "require_steps", "seq_per_step")


class RandomLTDScheduler:
    """Made from the section random_ltd; `global_batch_size` samples are counted per step."""

    def __init__(self, config):
        plan = config["random_ltd_schedule"]
        given = {**config, **plan, **plan["schedule_config"]}
        missing = [key for key in _NEEDED if given.get(key) is None]
        if missing:
            raise ConfigError(f"{' and '.join(missing)} must be given", "data_efficiency.data_routing.random_ltd",
                              "see docs/data_efficiency.md for a complete section")
        self.model_layer_num, self.random_ltd_layer_num = config["total_layer_num"], config["random_ltd_layer_num"]
        self.global_batch_size = config.get("global_batch_size", 1)
        steps = plan["schedule_config"]
        if plan["max_value"] < plan["min_value"]:
            raise ConfigError(f"max_value {plan['max_value']} is below min_value {plan['min_value']}", "random_ltd_schedule",
                              "give the tokens at the end a larger number than those at the start")
        self._curve = _C.Curriculum(json.dumps({
            "min_difficulty": plan["min_value"], "max_difficulty": plan["max_value"], "schedule_type": "fixed_linear",
            "schedule_config": {"total_curriculum_step": steps["require_steps"], "difficulty_step": steps["seq_per_step"]}}))
        self.reset_to_init()

    def reset_to_init(self):
        self.state = {"min_value": self._curve.min, "max_value": self._curve.max, "current_value": self._curve.min,
                      "consumed_layer_tokens": 0, "current_steps": -1}

    def get_value(self, global_steps):
        return self._curve.difficulty(global_steps)

    def update_seq(self, global_steps):
        """Before each forward of the step that follows `global_steps` others."""
        self.state["current_value"] = self.get_value(global_steps)
        if global_steps != self.state["current_steps"]:
            self.state["consumed_layer_tokens"] += self._layer_tokens(self.get_current_seq())
            self.state["current_steps"] = global_steps

    def _layer_tokens(self, kept):
        """Of a step: tokens times the layers that see them."""
        whole = self.model_layer_num - self.random_ltd_layer_num
        return self.global_batch_size * (kept * self.random_ltd_layer_num + self._curve.max * whole)

    def get_total_layer_tokens(self, train_iters):
        """Of a whole run from its start."""
        return sum(self._layer_tokens(self.get_value(step)) for step in range(train_iters))

    def get_current_seq(self):
        return self.state["current_value"]

    def set_current_seq(self, seq_length):
        self.state["current_value"] = seq_length

    def get_random_ltd_layer_num(self):
        return self.random_ltd_layer_num

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state_dict):
        self.state.update(state_dict)
