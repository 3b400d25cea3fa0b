"""Modules that are gathered as one unit with all that is below them."""

from typing import List

from pydantic import Field, field_validator

from capstan import _C
from deepspeed.runtime.config_utils import DeepSpeedConfigModel

DEFAULT_LEAF_MODULE_CLASSES: List[str] = [
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
]
_CORE = _C.config_defaults("zero_optimization.leaf_module")
DEFAULT_LEAF_MODULE_NAMES: List[str] = _CORE["names"]
DEFAULT_LEAF_MODULE_NAME_SUFFIXES: List[str] = _CORE["name_suffixes"]


class DeepSpeedZeroLeafModuleConfig(DeepSpeedConfigModel):
    classes: List[str] = Field(default_factory=lambda: list(DEFAULT_LEAF_MODULE_CLASSES))
    names: List[str] = Field(default_factory=lambda: list(DEFAULT_LEAF_MODULE_NAMES))
    name_suffixes: List[str] = Field(default_factory=lambda: list(DEFAULT_LEAF_MODULE_NAME_SUFFIXES))

    @field_validator("classes", "names", "name_suffixes", mode="before")
    @classmethod
    def _one_is_a_list(cls, value):
        return [value] if isinstance(value, str) else value
