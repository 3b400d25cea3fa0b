"""Models with layers that drop tokens, and their weights without the names that this adds."""

import re

from capstan.errors import ConfigError
from deepspeed.runtime.data_pipeline.data_routing.basic_layer import RandomLayerTokenDrop

_WRAPPED = ".random_ltd_layer"


def convert_to_random_ltd(model, convert_type):
    """Every layer of `convert_type` can drop tokens; an engine of deepspeed.initialize() is told which of them do so by its
    configuration. Returns `model`."""
    inside = getattr(model, "module", model)
    found = [(name, module) for name, module in inside.named_modules() if isinstance(module, convert_type)]
    if not found:
        raise ConfigError(f"the model has no {convert_type.__name__}", "convert_to_random_ltd(model, convert_type)",
                          "give the class of its layers, such as transformers' BertLayer, GPT2Block or ViTLayer")
    for name, layer in found:
        owner, _, own = name.rpartition(".")
        setattr(inside.get_submodule(owner), own, RandomLayerTokenDrop(layer))
    if hasattr(model, "random_ltd_initialize"):
        model.random_ltd_initialize()
    return model


def number_layers(model):
    """[(number, layer)] of all layers that can drop tokens: the last number in a layer's name, or its place among them where
    names have none or share one."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, RandomLayerTokenDrop)]
    numbers = [re.findall(r"(?<![^.])\d+(?![^.])", name) for name, _ in layers]
    last = [int(each[-1]) if each else None for each in numbers]
    if None in last or len(set(last)) < len(last):
        last = range(len(layers))
    return [(number, layer) for number, (_, layer) in zip(last, layers)]


def remove_random_ltd_state_dict(state_dict):
    """The same weights under the names of the model as it was."""
    return {name.replace(_WRAPPED, ""): value for name, value in state_dict.items()}


def save_without_random_ltd(model):
    """The weights of a model or an engine, under the names of the model as it was."""
    state = model.module_state_dict() if hasattr(model, "module_state_dict") else model.state_dict()
    return remove_random_ltd_state_dict(state)
