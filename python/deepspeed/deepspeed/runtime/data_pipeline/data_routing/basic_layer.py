"""RandomLayerTokenDrop: a layer that sees some of the tokens; the others go past it unchanged."""

import inspect

import torch
from torch import nn

from capstan import _C
from capstan.errors import ConfigError

_POSITIONS = ("position_ids", "position_embeddings")  # one entry per token, as rotary layers need them


def keep_rows(values, chosen):
    """Of `values` [batch or 1, tokens, ...], those at `chosen` [batch, kept]."""
    values = values.expand(chosen.size(0), *values.shape[1:])
    shape = (*chosen.shape, *values.shape[2:])
    return values.gather(1, chosen.view(*chosen.shape, *[1] * (values.dim() - 2)).expand(shape))


def keep_in_mask(mask, chosen, tokens):
    """A mask's columns (keys), and its rows (queries) where it has them, for the tokens at `chosen`. As these are in order, what
    was causal stays so."""
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor) or mask.size(-1) != tokens:
        raise ConfigError(f"the mask is a {type(mask).__name__}"
                          + (f" of shape {tuple(mask.shape)}" if isinstance(mask, torch.Tensor) else ""), "random_ltd",
                          f"give a tensor whose last dimension is the {tokens} tokens; attention implementations with other masks "
                          "(flex_attention) cannot be used")
    mask = mask.expand(chosen.size(0), *mask.shape[1:])
    if mask.dim() > 2 and mask.size(-2) == tokens:
        rows = chosen.view(chosen.size(0), *[1] * (mask.dim() - 3), -1, 1)
        mask = mask.gather(-2, rows.expand(*mask.shape[:-2], chosen.size(1), tokens))
    columns = chosen.view(chosen.size(0), *[1] * (mask.dim() - 2), -1)
    return mask.gather(-1, columns.expand(*mask.shape[:-1], chosen.size(1)))


class RandomLayerTokenDrop(nn.Module):
    """Wraps a layer. Until init_config(), outside of training, and with all tokens kept, it is that layer."""

    def __init__(self, layer):
        super().__init__()
        self.random_ltd_layer = layer
        self.random_ltd_scheduler = self.random_ltd_layer_id = None
        self.mask_name, self.batch_first, self.seed_of = "attention_mask", True, None

    def init_config(self, config, scheduler, random_ltd_layer_id, seed_of=None):
        """`seed_of(layer)`: of the tokens that the present forward keeps."""
        self.random_ltd_scheduler, self.random_ltd_layer_id = scheduler, random_ltd_layer_id
        self.mask_name = config.get("model_mask_name") or "attention_mask"
        self.batch_first = config.get("hidden_state_order") != "seq_batch_dim"
        self.seed_of = seed_of or (lambda layer: _C.derive_seed(int(torch.randint(2**62, ())), layer))

    def forward(self, hidden_states, *args, **kwargs):
        tokens = hidden_states.size(1 if self.batch_first else 0)
        kept = tokens if self.random_ltd_scheduler is None else self.random_ltd_scheduler.get_current_seq()
        if not self.training or kept >= tokens:
            return self.random_ltd_layer(hidden_states, *args, **kwargs)
        hidden = hidden_states if self.batch_first else hidden_states.transpose(0, 1)
        chosen = _C.choose_positions(hidden.size(0), tokens, kept, self.seed_of(self.random_ltd_layer_id)).to(hidden.device)
        short = keep_rows(hidden, chosen)
        args, kwargs = self._keep_arguments(args, kwargs, chosen, tokens)
        output = self.random_ltd_layer(short if self.batch_first else short.transpose(0, 1), *args, **kwargs)
        first = output if isinstance(output, torch.Tensor) else output[0]
        first = first if self.batch_first else first.transpose(0, 1)
        whole = hidden.scatter(1, chosen.unsqueeze(-1).expand_as(first), first.to(hidden.dtype))
        whole = whole if self.batch_first else whole.transpose(0, 1)
        return whole if isinstance(output, torch.Tensor) else (whole, *output[1:])

    def _keep_arguments(self, args, kwargs, chosen, tokens):
        """What has an entry per token, for those that are kept, by the names that the layer gives its arguments."""
        names = [name for name, each in inspect.signature(self.random_ltd_layer.forward).parameters.items()
                 if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)][1:]
        args = [self._keep(names[i] if i < len(names) else "", value, chosen, tokens) for i, value in enumerate(args)]
        return args, {name: self._keep(name, value, chosen, tokens) for name, value in kwargs.items()}

    def _keep(self, name, value, chosen, tokens):
        if name == self.mask_name:
            return keep_in_mask(value, chosen, tokens)
        if name in _POSITIONS and value is not None:
            return keep_rows(value, chosen) if isinstance(value, torch.Tensor) else tuple(keep_rows(each, chosen) for each in value)
        return value
