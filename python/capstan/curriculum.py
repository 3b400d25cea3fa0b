"""How difficult a step may be, from step to step: the curve is the core's, a custom one a function of the caller's."""

from capstan.errors import ConfigError


class CurriculumScheduler:
    """The current difficulty of a curriculum (capstan._C.Curriculum). It starts at the minimum, and once it is at the maximum
    it stays there."""

    def __init__(self, curriculum):
        self.curriculum, self.custom_get_difficulty = curriculum, None
        self.state = {"min_difficulty": curriculum.min, "max_difficulty": curriculum.max, "current_difficulty": curriculum.min}
        self._step = 0

    def set_custom_get_difficulty(self, schedule_function):
        """Of a custom curriculum: a function from the number of a step, counted from 1, to its difficulty."""
        self.custom_get_difficulty = schedule_function

    def get_difficulty(self, global_steps):
        if not self.curriculum.custom:
            return self.curriculum.difficulty(global_steps)
        if self.custom_get_difficulty is None:
            raise ConfigError("a custom curriculum has no function yet", "schedule_type: custom",
                              "call set_custom_get_difficulty(function) before the first step")
        return self.custom_get_difficulty(global_steps)

    def update_difficulty(self, global_steps):
        if global_steps < self._step:  # an earlier checkpoint was loaded
            self.set_current_difficulty(self.curriculum.min)
        self._step = global_steps
        if self.get_current_difficulty() < self.curriculum.max:
            self.set_current_difficulty(self.get_difficulty(global_steps))
        return self.get_current_difficulty()

    def get_current_difficulty(self):
        return self.state["current_difficulty"]

    def set_current_difficulty(self, difficulty):
        self.state["current_difficulty"] = difficulty

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def check_pipeline(**sections):
    """Refuses what a pipeline's engine cannot follow: section -> whether it is on. Its layers take no keywords."""
    for section, on in sections.items():
        if on:
            raise ConfigError("a pipeline trains without it: its layers cannot be told what a step changes", section,
                              "train without a pipeline, or remove the section; capstan train --pipe has curriculum_learning")
