"""What an engine saves and loads: checkpoints with all of its state, and weights alone."""

import json
import os
from collections import OrderedDict
from typing import NamedTuple

import torch

from capstan import _C, client_state as packed, optimizers
from capstan.errors import ConfigError, IoError
from capstan.params import handle_of
from capstan.stored_weights import write_file
from capstan.tensor_layers import slice_of, stored_name
from capstan.tensor_parallel import gather

_EXTRA = "extra_states"  # of modules, beside the counters


class Loaded(NamedTuple):
    """What load_checkpoint() found."""

    folder: str
    client_state: dict


class Checkpoints:
    """Mixed into capstan.Engine."""

    def save_checkpoint(self, folder, tag=None, client_state=None, *, save_latest=True, exclude_frozen_parameters=False):
        """Saves the model, the optimizer, the schedule and `client_state` as folder/<tag>, which any stage and number of
        ranks can load; returns that folder. `tag`: by default global_step<N>. Collective."""
        self._check_open()
        packer = packed.Packer()
        client = packer.text({} if client_state is None else client_state, "client_state")
        counters = {**self._counters(), _EXTRA: self._pack_extra_states(packer)}
        schedule = packer.text(None if self.lr_scheduler is None else self.lr_scheduler.state_dict(), "lr_scheduler")
        return self.core.save_checkpoint(os.fspath(folder), {
            "tag": "" if tag is None else str(tag), "client_state": packed.join(client, counters, self._group_values()),
            "lr_scheduler": schedule, "save_latest": save_latest,
            "param_groups": optimizers.stored_groups(self.given_optimizer, self.group_names),
            "exclude_frozen_parameters": exclude_frozen_parameters, "tensors": packer.tensors})

    def load_checkpoint(self, folder, tag=None, *, strict=True, optimizer_states=True, schedule=True, weights_only=False):
        """(folder, client_state) of what was loaded, or None if there is no checkpoint. Collective.

        `tag`: by default the newest complete one. Without `strict`, weights that do not fit are skipped, with a warning;
        without `optimizer_states`, masters are made from the weights; `weights_only` loads nothing else.
        """
        return self._load(folder, {"tag": "" if tag is None else str(tag), "load_module_strict": strict,
                                   "load_optimizer_states": optimizer_states, "load_lr_scheduler_states": schedule,
                                   "load_module_only": weights_only})

    def _load(self, folder, options, take_weights=None):
        """`take_weights` gets the StoredCheckpoint if the caller puts the weights into the module himself."""
        self._check_open()
        loaded = self.core.load_checkpoint(os.fspath(folder), options)
        if loaded is None:
            return None
        at, text, schedule, skipped = loaded
        stored = _C.StoredCheckpoint(*os.path.split(at))
        if take_weights is not None:
            take_weights(stored)
        else:
            for line in skipped:
                self._warn(line)
        client, counters, groups = packed.split(text, stored)
        self._set_extra_states(counters.pop(_EXTRA, {}))
        if not options["load_module_only"]:
            self._set_counters(counters)
            if options["load_optimizer_states"]:
                self._set_group_values(groups or optimizers.groups_of(stored, self.given_optimizer, self.group_names))
            if options["load_lr_scheduler_states"] and self.lr_scheduler is not None:
                state = packed.unpack(schedule, lambda name: stored.read(packed.TENSORS, name))
                if state is not None:
                    self.lr_scheduler.load_state_dict(state)
        return Loaded(at, client)

    def finish_saves(self):
        """Waits for a save in the background (checkpoint.writer.decoupled); raises what went wrong with it. Collective."""
        self._check_open()
        self.core.finish_saves()

    def whole_weights(self, exclude_frozen_parameters=False):
        """The module's state dict on rank 0's CPU, None on the others. Tensors are gathered one at a time; tied names share
        one. Collective."""
        self._check_open()
        state, first, read, keep = OrderedDict(), {}, set(), self._keeps_whole()
        known = {id(p): n for n, p in self.module.named_parameters()}
        for name, value in self.module.state_dict(keep_vars=True).items():
            if not isinstance(value, torch.nn.Parameter):
                if keep:
                    state[name] = value.detach().cpu() if isinstance(value, torch.Tensor) else value
                continue
            if exclude_frozen_parameters and not value.requires_grad:
                continue
            owner = stored_name(known.get(id(value), name), value)
            if id(value) not in read:
                read.add(id(value))
                self._read_whole(value, first, owner, keep)
            if keep:
                state[stored_name(name, value)] = first[owner]
        return state if keep else None

    def _read_whole(self, param, into, owner, keep):
        """into[owner] becomes a parameter's whole value, or gets what it is of that. Collective."""
        own, piece = self.core.read_param(self.view.index[id(param)]), slice_of(param)
        if piece is None:
            into[owner] = own.cpu() if keep else None
            return
        for begin, part in gather(param, own, keep) or ():
            if owner not in into:
                into[owner] = part.new_empty(piece.shape)
            into[owner].narrow(piece.dim, begin, piece.length).copy_(part)

    def state_dict(self, *args, **kwargs):
        """As of any module, names and buffers included. What is sharded has no values outside of gathered(engine.module):
        ConfigError says so, for a file of empty tensors would be found out too late. keep_vars=True gives the parameters
        themselves, as they are."""
        if not kwargs.get("keep_vars", False):
            self._check_whole()
        return super().state_dict(*args, **kwargs)

    def save_pretrained(self, folder, **options):
        """The module's own save_pretrained(), of whole weights: a folder that from_pretrained() loads. Where weights are
        sharded, or split between tensor ranks, collective, and rank 0 writes."""
        if not hasattr(self.module, "save_pretrained"):
            raise ConfigError(f"a {type(self.module).__name__} has no save_pretrained()", "save_pretrained()",
                              "use save_weights() or save_checkpoint()")
        if "state_dict" in options or not self.core_config.shards_params and self.tensor_ranks is None:
            return self.module.save_pretrained(os.fspath(folder), **options)
        state, error = self.whole_weights(), None
        if self._is_first():
            try:
                self.module.save_pretrained(os.fspath(folder), state_dict=state, **options)
            except (OSError, RuntimeError, ValueError) as caught:
                error = caught
        self._tell_of(error, os.fspath(folder))

    def _tell_of(self, error, path, together=True):
        """Raises IoError where a rank could not write; `together`: on all of them."""
        if together and self.core_group.any(torch.tensor(error is not None, device=self.device)) or error is not None:
            raise IoError("the weights could not be written", path, "see the error of rank 0") from error

    def _check_whole(self):
        if self.tensor_ranks is not None:
            raise ConfigError(f"the model is split between {self.tensor_ranks.size} ranks, so a state dict would have parts of its "
                              "weights", "state_dict()", "call whole_weights(), save_weights() or save_pretrained() on all ranks")
        away = [name for name, param in self.module.named_parameters() if not getattr(handle_of(param), "whole", True)]
        if away:
            raise ConfigError(f"parameter '{away[0]}' is sharded, so a state dict would have none of its values", "state_dict()",
                              "call whole_weights() or save_weights() on all ranks, or state_dict() inside "
                              "capstan.gathered(engine.module)")

    def save_weights(self, path, exclude_frozen_parameters=False):
        """Rank 0 writes whole_weights() as one file: safetensors if it is called so, else a file of torch.save. Collective;
        a file that cannot be written is an error on all ranks."""
        self._write_weights(self.whole_weights(exclude_frozen_parameters), os.fspath(path),
                            safetensors=os.fspath(path).endswith(".safetensors"))

    def _write_weights(self, state, path, *, safetensors=False, together=True):
        error = None
        if self._is_first():
            try:
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                write_file(state, path, safetensors)
            except (OSError, RuntimeError, ConfigError) as caught:  # torch's writer throws RuntimeError
                error = caught
        self._tell_of(error, path, together)

    def _keeps_whole(self):
        """Whether this rank keeps what all have gathered."""
        return self._is_first()

    def _is_first(self):
        """Whether this rank writes files for all."""
        return self.core_group.rank == 0

    def _counters(self):
        """Under the names that checkpoints have for them."""
        progress = self.core.progress
        return {"global_steps": progress.steps, "global_samples": progress.samples, "skipped_steps": progress.skipped,
                "micro_steps": progress.micro_steps}

    def _set_counters(self, counters):
        """The core has its own back by itself."""

    def _group_values(self):
        """Hyper-parameters of each group that are plain values."""
        groups = [] if self.given_optimizer is None else self.given_optimizer.param_groups
        return [{key: value for key, value in group.items()
                 if key != "params" and isinstance(value, (int, float, bool, str, list, tuple, type(None)))}
                for group in groups]

    def _set_group_values(self, groups):
        optimizer = self.given_optimizer
        for group, saved in zip(optimizer.param_groups if optimizer else [], groups):
            group.update({key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()})
        if isinstance(optimizer, optimizers.KernelOptimizer):
            optimizer.note_steps(self.core.optimizer_steps)

    def _modules_with_extra_state(self):
        return {name: module for name, module in self.module.named_modules()
                if type(module).get_extra_state is not torch.nn.Module.get_extra_state}

    def _pack_extra_states(self, packer):
        """What modules keep beside parameters and buffers (get_extra_state), as far as a checkpoint can hold it."""
        states = {}
        for name, module in self._modules_with_extra_state().items():
            try:
                states[name] = json.loads(packer.text(module.get_extra_state(), f"the extra state of '{name}'"))
            except ConfigError as error:
                self._warn(f"not saved: {error.where}: {error.what}")
        return states

    def _set_extra_states(self, states):
        modules = self._modules_with_extra_state()
        for name, state in states.items():
            if name in modules:
                modules[name].set_extra_state(state)
