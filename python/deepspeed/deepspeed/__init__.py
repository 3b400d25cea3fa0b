"""DeepSpeed's interface over capstan: the same names, another engine."""

import os
import sys

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for GPUs must not stop a later fork

import torch  # noqa: E402

from deepspeed import comm, ops, utils  # noqa: E402,F401
from deepspeed.accelerator import get_accelerator  # noqa: E402,F401
from deepspeed.comm.comm import init_distributed  # noqa: E402,F401
from deepspeed.inference import InferenceEngine  # noqa: E402,F401
from deepspeed.later import names_of  # noqa: E402
from deepspeed.runtime import DeepSpeedOptimizer, ZeROOptimizer, lr_schedules, zero  # noqa: E402,F401
from deepspeed.runtime.activation_checkpointing import checkpointing  # noqa: E402,F401
from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError  # noqa: E402,F401
from deepspeed.runtime.dataloader import DeepSpeedDataLoader  # noqa: E402,F401
from deepspeed.runtime.engine import DeepSpeedEngine  # noqa: E402,F401
from deepspeed.runtime.hybrid_engine import DeepSpeedHybridEngine  # noqa: E402,F401
from deepspeed.runtime.initialize import add_config_arguments, initialize  # noqa: E402,F401
from deepspeed.runtime.lr_schedules import add_tuning_arguments  # noqa: E402,F401
from deepspeed.runtime.pipe import PipelineModule  # noqa: E402,F401
from deepspeed.runtime.pipe.engine import PipelineEngine  # noqa: E402,F401
from deepspeed.runtime.tensor_parallel import tp_model_init  # noqa: E402,F401
from deepspeed.utils import OnDevice, log_dist, logger  # noqa: E402,F401
from deepspeed.version import version  # noqa: E402

__version__ = version
__version_major__, __version_minor__, __version_patch__ = (int(part) for part in version.split(".")[:3])
__git_hash__, __git_branch__ = "capstan", "main"
dist = comm

sys.modules["deepspeed.zero"] = zero  # `import deepspeed.zero` has always worked
sys.modules["deepspeed.checkpointing"] = checkpointing

globals().update(names_of(__name__))

from deepspeed.module_inject import (replace_transformer_layer, revert_transformer_layer,  # noqa: E402,F401
                                     set_autotp_mode)
from deepspeed import module_inject, moe, pipe, runtime  # noqa: E402,F401


def is_compile_supported():
    return hasattr(torch.nn.Module, "compile")
