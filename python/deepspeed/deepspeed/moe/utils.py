"""Questions about experts' parameters; nothing here is one yet."""

from deepspeed.later import refuse


def is_moe_param(param):
    return hasattr(param, "allreduce") and not param.allreduce


def has_moe_layers(module):
    return False, 0


def split_params_into_different_moe_groups_for_optimizer(param_groups, max_group_size=None):
    """The groups with experts' parameters apart; groups without any stay as they are."""
    groups = [param_groups] if isinstance(param_groups, dict) else list(param_groups)
    for group in groups:
        group["params"] = list(group["params"])
        if any(is_moe_param(param) for param in group["params"]):
            refuse("groups of experts' parameters")
    return groups
