"""How the layers of a model are split between tensor ranks: by its own plan (`_tp_plan`, of transformers), or by the names of
its layers. Values only: nothing is changed here."""

import re
from typing import NamedTuple

from torch import nn

from capstan.errors import ConfigError
from capstan.tensor_layers import is_transposed

WHERE = "tensor parallelism"


class Split(NamedTuple):
    """Of one layer. `kind`: column, row, vocabulary, heads (an embedding of one number per head), summed (gradients of a part
    of the activations)."""

    kind: str
    whole_outside: bool = False  # a column's outputs are gathered; a row's inputs are there as a whole
    blocks: int = 1              # several matrices side by side in one weight


_STYLES = {"colwise": Split("column"), "rowwise": Split("row"), "colwise_gather_output": Split("column", True),
           "colwise_rep": Split("column", True), "rowwise_split_input": Split("row", True), "rowwise_rep": Split("row", True),
           "embedding_rowwise": Split("vocabulary"), "replicated_with_grad_allreduce": Split("summed"), "replicate": None}

# Ends of names of linear layers in the repeated blocks of models without a plan.
_COLUMNS = re.compile(r"(?:^|\.)(q_proj|k_proj|v_proj|query|key|value|q|k|v|q_lin|k_lin|v_lin|q_attn|c_attn|c_fc|fc1|fc_in|lin1|wi|wi_0|wi_1"
                      r"|gate_proj|up_proj|intermediate\.dense|ffn)$")
_ROWS = re.compile(r"(?:^|\.)(o_proj|out_proj|down_proj|c_proj|fc2|fc_out|lin2|out_lin|wo|o|output\.dense|attention\.dense|ffn_output)$")
# Of an attention without a plan: counts of heads, and lengths of which it has a part.
ATTRIBUTES = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_key_value_heads", "num_kv_heads", "all_head_size",
              "split_size", "inner_dim")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")


def is_linear(module):
    if type(module).forward is nn.Linear.forward:
        return True
    return is_transposed(module) and hasattr(module, "nf")


class Rules(NamedTuple):
    """Of a user, as the core reads them; the first whose pattern fits a parameter's name counts."""

    rules: list = []  # (patterns, kind, types of models, blocks, gather output, sum gradients)
    others_by_default: bool = True
    strict: bool = False


def plan_of(model, size, rules=None):
    """{name of a module: Split}. Raises ConfigError that names every layer which `size` ranks cannot split rightly."""
    modules, problems = dict(model.named_modules()), []
    rules = Rules(*(rules or ()))
    ruled = _by_rules(model, modules, rules, problems)
    plan, own = {}, own_plan(model)
    if rules.others_by_default:
        others = {name: module for name, module in modules.items() if name not in ruled}
        plan = _by_plan(modules, others, own, problems) if own else _by_names(modules, others, problems)
        _drop_uneven_outsides(modules, plan, size)
    elif rules.strict:
        problems += [f"no rule says how '{name}' is split" for name, module in modules.items()
                     if is_linear(module) and name not in ruled]
    plan.update({name: split for name, split in ruled.items() if split is not None})
    problems += _half_split(modules, plan)
    for name, split in plan.items():
        problems += _why_not(modules, name, split, size)
    if not problems and not any(split.kind in ("column", "row") for split in plan.values()):
        problems.append("it has no linear layer that a plan or its name says how to split")
    problems = list(dict.fromkeys(problems))
    if problems:
        more = [f"and {len(problems) - 10} more"] if len(problems) > 10 else []
        raise ConfigError(f"{size} tensor ranks cannot split this {type(model).__name__}: " + "; ".join(problems[:10] + more), WHERE,
                          "use another number of tensor ranks, or one; say how layers are split in tensor_parallel.partition_config; "
                          "or use ZeRO stage 3")
    return plan


def own_plan(model):
    """What transformers says of the model; empty: nothing."""
    return getattr(model, "_tp_plan", None) or {}


def uses_plan(model):
    return bool(own_plan(model))


def _by_rules(model, modules, rules, problems):
    """{name of a module: its Split, or None: whole}."""
    kind_of_model, found = getattr(getattr(model, "config", None), "model_type", None), {}
    try:
        wanted = [([re.compile(pattern) for pattern in patterns], *rest) for patterns, *rest in rules.rules]
    except re.error as error:
        problems.append(f"the pattern '{error.pattern}' is no regular expression: {error.msg}")
        return {}
    for name, module in modules.items():
        for parameter in module._parameters:
            full = f"{name}.{parameter}" if name else parameter
            rule = next((rule for patterns, *rule in wanted if (not rule[1] or kind_of_model in rule[1])
                         and any(pattern.match(full) for pattern in patterns)), None)
            if rule is not None and parameter != "bias":
                found[name] = _split_of_rule(*rule)
    return found


def _split_of_rule(kind, model_types, blocks, gather_output, sum_gradients):
    if kind == "skip":
        return Split("summed") if sum_gradients else None
    return Split(kind, gather_output, blocks)


def _half_split(modules, plan):
    """Weights that one layer would have a part of, and another all."""
    kinds, problems = {}, []
    for name, module in modules.items():
        weight = module._parameters.get("weight")
        if weight is None:
            continue
        first, kind = kinds.setdefault(id(weight), (name, name in plan))
        if kind != (name in plan):
            problems.append(f"'{first}' and '{name}' have the same weight, but only one of them is split")
    return problems


def _by_plan(modules, others, own, problems):
    plan = {}
    for pattern, style in own.items():
        match = re.compile(r"\d+".join(map(re.escape, pattern.split("*")))).fullmatch
        found = [name for name in others if match(name)]
        if style not in _STYLES:
            if found or _has_parameter(modules[""], match):
                problems.append(f"'{pattern}' is split as '{style}', which is not available yet")
        elif found:
            plan.update({name: _STYLES[style] for name in found if _STYLES[style] is not None})
        elif _STYLES[style] is not None and _has_parameter(modules[""], match):
            problems.append(f"'{pattern}' is a parameter of its own, not a layer")
    return plan


def _has_parameter(model, match):
    return any(match(name) for name, _ in model.named_parameters())


def _by_names(modules, others, problems):
    plan = {}
    for name, module in others.items():
        if not any(part.isdigit() for part in name.split(".")):
            continue  # what is not repeated stays whole, on every rank
        if is_linear(module):
            split = _split_of_linear(modules, name)
            if split is None:
                problems.append(f"nothing says how '{name}' is split")
            else:
                plan[name] = split
        elif isinstance(module, nn.Embedding) and name.endswith("relative_attention_bias"):
            plan[name] = Split("heads")
        elif any(True for _ in module.parameters(recurse=False)) and not _is_norm_outside(name, module):
            problems.append(f"nothing says how '{name}' ({type(module).__name__}) is split")
    return plan


def _split_of_linear(modules, name):
    if name.endswith(".c_attn"):  # query, key and value, or the last two of them
        length = getattr(modules[name.rpartition(".")[0]], "split_size", 0)
        outputs = modules[name].weight.shape[-1] if is_transposed(modules[name]) else modules[name].weight.shape[0]
        return Split("column", blocks=outputs // length) if length and outputs % length == 0 else None
    if _ROWS.search(name):
        return Split("row")
    return Split("column") if _COLUMNS.search(name) else None


def _is_norm_outside(name, module):
    own = name.rpartition(".")[2].lower()
    return "norm" in type(module).__name__.lower() and not own.startswith(("q_", "k_", "query", "key"))


def _drop_uneven_outsides(modules, plan, size):
    """Embeddings and output layers may stay whole: where they are not plain ones, where ranks do not divide them, and where
    others have the same weight and stay so."""
    whole = {}
    for name, module in modules.items():
        weight = module._parameters.get("weight")
        if weight is not None:
            whole.setdefault(id(weight), []).append(name)
    for names in whole.values():
        if not any(name in plan and _may_stay(modules, name, plan[name]) for name in names):
            continue
        if all(name in plan and _can_be_cut(modules[name], plan[name], size) for name in names):
            continue
        for name in names:
            if name in plan and _may_stay(modules, name, plan[name]):
                del plan[name]


def _may_stay(modules, name, split):
    """Whether nobody else sees if it is whole."""
    return split.kind == "vocabulary" or split == Split("column", True) and attention_of(modules, name) is None


def _can_be_cut(module, split, size):
    if split.kind != "vocabulary":
        return is_linear(module) and _length(module, "column") % size == 0
    plain = type(module) is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return plain and module.num_embeddings % size == 0


def _length(module, kind):
    """Of the dimension that is cut."""
    shape = module.weight.shape
    return shape[-1] if (kind == "column") == is_transposed(module) else shape[0]


def attention_of(modules, name):
    """The attention that a layer belongs to: the name of the nearest module of such a class, or None."""
    while name:
        name = name.rpartition(".")[0]
        if "attention" in type(modules[name]).__name__.lower():
            return name
    return None


def key_heads(modules, name):
    """How many key heads an attention has; 0: it does not say."""
    inside = [module for other, module in modules.items() if other == name or other.startswith(name + ".")]
    for names in (_KEY_HEADS, _HEADS):
        places = inside + [config for config in [getattr(module, "config", None) for module in inside] if config is not None]
        for place in places:
            for attribute in names:
                count = getattr(place, attribute, None)
                if isinstance(count, int) and count > 0:
                    return count
    return 0


def _why_not(modules, name, split, size):
    module = modules[name]
    if split.kind in ("vocabulary", "summed"):
        return []
    if split.kind != "heads" and not is_linear(module):
        return [f"'{name}' is a {type(module).__name__}, not a torch.nn.Linear"]
    length = module.embedding_dim if split.kind == "heads" else _length(module, split.kind)
    attention = attention_of(modules, name)
    if attention is not None and not split.whole_outside:
        heads = key_heads(modules, attention)
        if heads == 0:
            return [f"'{attention}' does not say how many heads it has"]
        if heads % size:
            return [f"'{attention}' has {heads} key heads, which they cannot share equally"]
        if length % (split.blocks * heads):
            return [f"'{name}' has a length of {length}, in which there are no {heads} heads"]
    elif length % (size * split.blocks):
        return [f"'{name}' has a length of {length}, which they do not divide"]
    return []
