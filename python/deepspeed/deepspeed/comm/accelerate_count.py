"""How many processes Hugging Face Accelerate counts.

It counts one where it does not know the backend, and on CPUs it knows none unless it is told: every process would then see
all of the data, and batches of one process.
"""

import sys

import torch.distributed as dist

from capstan.errors import ConfigError


def _state():
    """What Accelerate knows, as far as it has begun to find out."""
    state = sys.modules.get("accelerate.state")
    return getattr(getattr(state, "PartialState", None), "_shared_state", None) or {}


def tell_backend():
    """Where Accelerate is asking for the ranks at this moment without a backend: the one that they have."""
    state = _state()
    if "backend" in state and state["backend"] is None and "num_processes" not in state and dist.get_world_size() > 1:
        state["backend"] = dist.get_backend()


def check_count():
    """Raises ConfigError where Accelerate prepares an engine and counts other processes than there are."""
    counted, ranks = _state().get("num_processes"), dist.get_world_size()
    uses_us = str(_state().get("distributed_type")).endswith("DEEPSPEED")
    if uses_us and counted not in (None, ranks):
        raise ConfigError(f"Accelerate counts {counted} process{'es' * (counted != 1)}, torch.distributed {ranks}: batch sizes "
                          "and data would be computed for the wrong number of ranks", "accelerate.PartialState",
                          "create the Accelerator (or TrainingArguments) after the launcher's variables are set, with "
                          f"kwargs_handlers=[InitProcessGroupKwargs(backend=\"{dist.get_backend()}\")] if that is not enough")
