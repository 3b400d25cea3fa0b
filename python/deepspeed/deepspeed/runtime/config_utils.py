"""Sections of the configuration as pydantic models."""

from functools import reduce

from pydantic import BaseModel, ConfigDict

from capstan import _C
from deepspeed.utils.logging import logger


def lone_defaults(section):
    """Of DeepSpeed's object of this section alone, without a configuration around it."""
    return {**_C.config_defaults(section), **_C.lone_defaults(section)}


class DeepSpeedConfigModel(BaseModel):
    """Strict sections. A field marked deprecated (json_schema_extra) warns, and hands its value to `new_param`,
    through `new_param_fn` where one is given."""

    model_config = ConfigDict(validate_default=True, validate_assignment=True, use_enum_values=True,
                              populate_by_name=True, extra="forbid", arbitrary_types_allowed=True,
                              protected_namespaces=())

    def __init__(self, strict=False, **data):
        if not strict:  # "auto" means: as if nothing were said
            data = {key: value for key, value in data.items()
                    if value != "auto" or key == "replace_method"}
        super().__init__(**data)
        self._move_deprecated()

    def _move_deprecated(self):
        given = set(self.model_fields_set)
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra or {}
            if not isinstance(extra, dict) or not extra.get("deprecated") or name not in given:
                continue
            target = extra.get("new_param", "")
            logger.warning(f"Config parameter {name} is deprecated" + (f" use {target} instead" if target else ""))
            if not target or not extra.get("set_new_param", True):
                continue
            assert target not in given, f"'{name}' is the old name of '{target}': use only one of them"
            value = extra.get("new_param_fn", lambda x: x)(getattr(self, name))
            *path, last = target.split(".")
            setattr(reduce(getattr, path, self), last, value)


def get_scalar_param(param_dict, name, default):
    return param_dict.get(name, default)


def get_list_param(param_dict, name, default):
    return param_dict.get(name, default)


def get_dict_param(param_dict, name, default):
    return param_dict.get(name, default)


def dict_raise_error_on_duplicate_keys(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"Duplicate keys in DeepSpeed config: {sorted({k for k in keys if keys.count(k) > 1})}")
    return found
