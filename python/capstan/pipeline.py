"""Hugging Face decoder models cut into the stages of a pipeline, without rewriting them.

    model = capstan.pipeline.split(AutoModelForCausalLM.from_pretrained(name), stages=2)
    engine = capstan.initialize(model, "ds_config.json")
    loss = engine.train_batch(iter(batches))
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from capstan import _C, params, process_group, stage_weights
from capstan.errors import ConfigError


class _NoPositions(nn.Module):
    """Stands for an embedding of positions that an earlier stage has added: x + -0.0 is x, to the bit."""

    def forward(self, position_ids):
        return torch.tensor(-0.0, device=position_ids.device)


class _Elsewhere(nn.Module):
    """Stands for a block of another stage."""

    def forward(self, hidden_states, *args, **kwargs):
        return hidden_states


class _Family(NamedTuple):
    """What the modules of a kind of model are called."""

    base: str        # of the whole, beside lm_head
    embedding: str   # of that
    before: dict     # what else runs before the blocks: name -> what stands for it on later stages
    blocks: str
    norm: str
    refused: tuple = ()  # arguments that other stages cannot take


_LLAMA = _Family("model", "embed_tokens", {}, "layers", "norm")
_GPT2 = _Family("transformer", "wte", {"wpe": _NoPositions, "drop": nn.Identity}, "h", "ln_f",
                ("token_type_ids", "encoder_hidden_states"))
_FAMILIES = {"gpt2": _GPT2, **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _LLAMA)}
_ONE_PIECE = ("labels", "past_key_values", "use_cache", "logits_to_keep", "output_hidden_states", "output_attentions")


def _family_of(model):
    """How the model is put together; ConfigError where split() does not know it."""
    family = _FAMILIES.get(getattr(getattr(model, "config", None), "model_type", None))
    children = {name for name, _ in model.named_children()} if isinstance(model, nn.Module) else set()
    if family is None or children != {family.base, "lm_head"}:
        known = ", ".join(sorted(_FAMILIES))
        raise ConfigError(f"a {type(model).__name__} cannot be cut into stages", "capstan.pipeline.split(model)",
                          f"give a language model of Hugging Face's of one of the kinds {known}; for others, write a "
                          f"deepspeed.pipe.PipelineModule")
    return family


def _shallow(module):
    """A module of the same class with the same children, to be given others."""
    copy = type(module).__new__(type(module))
    copy.__dict__ = {**module.__dict__, "_modules": dict(module._modules)}
    return copy


class SplitModel(nn.Module):
    """One stage of a model, made by split(). Its parameters and buffers have the names that they have in the whole model.

    forward() takes what the model takes on the first stage, tokens or a dict of arguments, and what the stage before gave
    on the others. The last one gives logits.
    """

    def __init__(self, model, family, cuts, stage):
        super().__init__()
        self.config, self.cuts = model.config, cuts
        self.num_stages, self.stage_id = len(cuts) - 1, stage
        self._family, self._tied = family, _is_tied(model, family)
        self._first, self._last = self.stage_id == 0, self.stage_id == self.num_stages - 1
        self._register(model, family)
        self._runs = [self._running(model, family)]  # in a list: it is no child, whose names would be others

    def _has_ends(self):
        """Whether this stage has the weights of both ends, because they are tied."""
        return self._tied and (self._first or self._last)

    def _register(self, model, family):
        """Our own modules where the model has them."""
        base = getattr(model, family.base)
        ours, blocks = nn.Module(), nn.Module()
        for index in range(*self.stage_layers()):
            blocks.add_module(str(index), getattr(base, family.blocks)[index])
        here = {family.embedding: self._first or self._has_ends(), family.norm: self._last,
                **dict.fromkeys(family.before, self._first)}
        for name, child in base.named_children():
            if here.get(name, True):
                ours.add_module(name, blocks if name == family.blocks else child)
        self.add_module(family.base, ours)
        if self._last or self._has_ends():
            self.add_module("lm_head", model.lm_head)

    def _running(self, model, family):
        """The model with all that other stages do taken out: its own code computes positions and masks."""
        whole, base = _shallow(model), _shallow(getattr(model, family.base))
        whole._modules[family.base] = base
        own, blocks = range(*self.stage_layers()), base._modules[family.blocks]
        base._modules[family.blocks] = nn.ModuleList(each if at in own else _Elsewhere() for at, each in enumerate(blocks))
        if not self._first:
            base._modules.update({family.embedding: None, **{name: kind() for name, kind in family.before.items()}})
        if not self._last:
            base._modules[family.norm] = nn.Identity()
            whole._modules["lm_head"] = None
        return whole

    def forward(self, given):
        run, arguments = self._runs[0], {"input_ids": given} if isinstance(given, torch.Tensor) else dict(given)
        for name in (*_ONE_PIECE, *self._family.refused):
            if name in arguments:
                raise ConfigError(f"the argument '{name}' cannot go through stages", "train_batch(data_iter)",
                                  "leave it out; labels are the second of a pair, or the entry 'labels' of a dict")
        if self._last:
            return run(**arguments, use_cache=False).logits
        hidden = getattr(run, self._family.base)(**arguments, use_cache=False).last_hidden_state
        arguments.pop("input_ids", None)
        return {**arguments, "inputs_embeds": hidden}

    # What an engine asks of a stage.

    def stage_layers(self):
        """The first block and the one after the last."""
        return self.cuts[self.stage_id], self.cuts[self.stage_id + 1]

    def stage_loss(self, logits, labels):
        """As the model computes it: labels are shifted, those of -100 left out."""
        return self._runs[0].loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)

    def stage_ties(self):
        """(key, stages, our names of it) of weights that several stages have."""
        if not self._tied or self.num_stages == 1:
            return []
        name = f"{self._family.base}.{self._family.embedding}.weight"
        return [(name, [0, self.num_stages - 1], [name] if self._has_ends() else [])]

    def stage_recompute(self, interval, reentrant):
        """Activations of so many blocks at a time are computed again in backward; 0: as the model says."""
        if interval == 0:
            return
        if interval != 1:
            raise ConfigError(f"blocks of a {type(self._runs[0]).__name__} are recomputed one at a time, not {interval}",
                              "pipeline.activation_checkpoint_interval", "write 1, or 0 to keep all activations")
        self._runs[0].gradient_checkpointing_enable({"use_reentrant": reentrant})

    @property
    def stage_recomputes(self):
        return any(getattr(module, "gradient_checkpointing", False) for module in self.modules())

    def describe(self):
        begin, end = self.stage_layers()
        has = ["embeddings"] * self._first + [f"blocks {begin} to {end - 1}"] + ["output"] * self._last
        return f"stage {self.stage_id}: {', '.join(has)}"


def _is_tied(model, family):
    return getattr(getattr(model, family.base), family.embedding).weight is model.lm_head.weight


def _elements(module):
    return sum(param.numel() for param in module.parameters())


def _even_cuts(model, family, stages):
    """So that the slowest stage is as fast as it can be: tokens are multiplied with all but the embeddings."""
    blocks = getattr(getattr(model, family.base), family.blocks)
    return _C.cut_blocks([0, *map(_elements, blocks), _elements(model.lm_head)], stages)


def _checked_cuts(cuts, stages, blocks):
    whole = [0, *cuts, blocks]
    if len(cuts) != stages - 1 or any(begin >= end for begin, end in zip(whole, whole[1:])):
        raise ConfigError(f"the cuts {list(cuts)} do not make {stages} stages of {blocks} blocks", "capstan.pipeline.split(cuts)",
                          "give the number of the first block of each stage but the first one, ascending")
    return whole


def split(model, stages, *, cuts=None, weights=None, group=None):
    """This rank's stage of a language model of Hugging Face's, as a module for initialize().

    Of N ranks, N / `stages` see different data; the first N / `stages` have the first stage. `cuts`: the first block of
    each stage but the first one; by default all stages take about as long. The stage has the model's own modules: let go of
    the model to free the rest. A model on the meta device takes no memory; `weights`, a folder with safetensors or a mapping
    of names to tensors, is read for this stage's parameters only.
    """
    family = _family_of(model)
    if any(params.handle_of(param) is not None for param in model.parameters()):
        raise ConfigError("the model's parameters are sharded over all ranks, which a stage has only some of",
                          "capstan.pipeline.split(model)", "build it on the meta device, and give weights=FOLDER")
    process_group.init_distributed()
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    stage = _C.pipe_mesh(world, stages).place(_C.Axis.pipe, rank)
    blocks = len(getattr(getattr(model, family.base), family.blocks))
    cuts = _even_cuts(model, family, stages) if cuts is None else _checked_cuts(cuts, stages, blocks)
    part = SplitModel(model, family, cuts, stage)
    stage_weights.materialize(part, weights)
    return part


def split_as_configured(model, view, optimizer):
    """The model, or its stage where the configuration has several and it is in one piece."""
    stages = view.value("pipeline.stages")
    if stages in (None, 1) or hasattr(model, "stage_loss"):
        return model
    if optimizer is not None:
        raise ConfigError("an optimizer over all of a model was given, but each rank trains one stage of it", "pipeline.stages",
                          f"name the optimizer in the configuration, or make it over the parameters of "
                          f"capstan.pipeline.split(model, {stages}) and pass both")
    return split(model, stages)
