"""CurriculumScheduler by DeepSpeed's name, made from a section of a configuration; the curve is capstan's."""

import json

from capstan import _C, curriculum
from capstan.errors import ConfigError
from deepspeed.utils.logging import logger

# Of the section's keys, those that say how difficulty grows.
_GROWTH = ("min_difficulty", "max_difficulty", "schedule_type", "schedule_config")


class CurriculumScheduler(curriculum.CurriculumScheduler):

    def __init__(self, config):
        given = {key: config[key] for key in _GROWTH if key in config}
        missing = [key for key in _GROWTH[:3] if given.get(key) is None]
        if missing:
            raise ConfigError(f"a curriculum without {' and '.join(missing)}", "the curriculum", "add the missing keys")
        super().__init__(_C.Curriculum(json.dumps(given)))
        self.state.update(given)
        if self.curriculum.warning:
            logger.warning(self.curriculum.warning)
