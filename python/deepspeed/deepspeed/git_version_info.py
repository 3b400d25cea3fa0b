"""What `ds_report` and tests ask about the build."""

import torch

from deepspeed.version import version

git_hash, git_branch = "capstan", "main"
installed_ops = {}
accelerator_name = "cuda" if torch.version.cuda else "cpu"
torch_info = {
    "version": ".".join(torch.__version__.split(".")[:2]),
    "bf16_support": True,
    "cuda_version": torch.version.cuda or "0.0",
    "nccl_version": "0.0",
    "hip_version": "0.0",
}


def __getattr__(name):
    if name == "compatible_ops":
        from deepspeed.ops import __compatible_ops__
        return __compatible_ops__
    raise AttributeError(name)
