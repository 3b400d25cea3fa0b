"""LayerSpec and TiedLayerSpec: layers that are built later, and only where they are needed."""

import torch
from torch import nn

from capstan.errors import ConfigError
from deepspeed.runtime.utils import call_to_str
from deepspeed.utils.logging import logger


class LayerSpec:
    """A class of layers and what to make one with: LayerSpec(nn.Linear, 4, 8, bias=False)."""

    def __init__(self, typename, *module_args, **module_kwargs):
        if not (isinstance(typename, type) and issubclass(typename, nn.Module)):
            raise RuntimeError("LayerSpec only supports torch.nn.Module types.")
        self.typename, self.module_args, self.module_kwargs = typename, module_args, module_kwargs

    def __repr__(self):
        return call_to_str(self.typename.__name__, *self.module_args, **self.module_kwargs)

    def build(self, log=False):
        """A new layer."""
        if log:
            logger.info("building %r", self)
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """One of several layers that share a module: all specs of one `key` do."""

    def __init__(self, key, typename, *module_args, forward_fn=None, tied_weight_attr=("weight",), **module_kwargs):
        super().__init__(typename, *module_args, **module_kwargs)
        self.key, self.forward_fn = key, forward_fn
        self.tied_weight_attr = [tied_weight_attr] if isinstance(tied_weight_attr, str) else list(tied_weight_attr)


def type_name(layer):
    """Of a layer, a spec or a function; empty where it has no name."""
    if isinstance(layer, LayerSpec):
        return layer.typename.__name__
    return type(layer).__name__ if isinstance(layer, nn.Module) else getattr(layer, "__name__", "")


def _built_to_count(spec):
    """Without memory where the class can do without, and without drawing from the generators."""
    try:
        with torch.device("meta"):
            return spec.build()
    except Exception:  # its constructor looks at values
        with torch.random.fork_rng():
            return spec.build()


def trainable_elements(layer):
    """How many; a spec is built once to be counted and dropped."""
    module = _built_to_count(layer) if isinstance(layer, LayerSpec) else layer
    if not isinstance(module, nn.Module):
        return 0
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def check_layers(layers):
    for index, layer in enumerate(layers):
        if not (isinstance(layer, (nn.Module, LayerSpec)) or callable(layer)):
            raise ConfigError(f"layer {index} is a {type(layer).__name__}", "PipelineModule(layers)",
                              "give modules, LayerSpec objects or functions of one argument")
