"""The package's logger, and messages of chosen ranks only."""

import functools
import logging
import os
import sys

from capstan.log_place import launcher_names_ranks, stacklevel

log_levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
              "critical": logging.CRITICAL}


class LoggerFactory:

    @staticmethod
    def create_logger(name="DeepSpeed", level=logging.WARNING):
        made = logging.getLogger(name)
        made.setLevel(level)
        made.propagate = False
        if not made.handlers:
            handler = logging.StreamHandler(stream=sys.stdout)
            handler.setLevel(level)
            handler.setFormatter(logging.Formatter(
                "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"))
            made.addHandler(handler)
        return made


logger = LoggerFactory.create_logger(
    level=log_levels.get(os.environ.get("DS_LOG_LEVEL", "warning").lower(), logging.WARNING))


def get_log_level_from_string(text):
    level = log_levels.get(text.lower())
    if level is None:
        raise ValueError(f"{text} is not one of the `log_levels`: {', '.join(log_levels)}")
    return level


def set_log_level_from_string(text, target=None):
    target = logger if target is None else target
    level = get_log_level_from_string(text)
    target.setLevel(level)
    for handler in target.handlers:
        handler.setLevel(level)


def should_log_le(text):
    """Whether messages of this level, or of a lower one, are shown."""
    return logger.getEffectiveLevel() <= get_log_level_from_string(text)


def get_current_level():
    return logger.getEffectiveLevel()


def _rank():
    import torch.distributed as dist
    return dist.get_rank() if dist.is_initialized() else 0


def log_dist(message, ranks=None, level=logging.INFO, use_logger=True):
    """Logs on the given ranks; None or [-1] means all."""
    if ranks and -1 not in ranks and _rank() not in ranks:
        return
    text = message if launcher_names_ranks() else f"[Rank {_rank()}] {message}"
    logger.log(level, text, stacklevel=stacklevel()) if use_logger else print(text)


def print_dist(message, ranks=None):
    log_dist(message, ranks, use_logger=False)


@functools.lru_cache(maxsize=None)
def warning_once(message):
    logger.warning(message, stacklevel=stacklevel())


@functools.lru_cache(maxsize=None)
def log_dist_once(message, level=logging.INFO):
    logger.log(level, message, stacklevel=stacklevel())


logger.warning_once = warning_once


def print_configuration(args, name):
    logger.info(f"{name}:")
    for key in sorted(vars(args)):
        logger.info(f"  {key} = {getattr(args, key)}")


def print_json_dist(message, ranks=None, path=None):
    import json
    if ranks and _rank() not in ranks:
        return
    with open(path, "w") as file:
        json.dump(message, file)
