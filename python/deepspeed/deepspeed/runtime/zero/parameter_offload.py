"""Stage 3 without an optimizer: parameters are gathered for use, nothing is updated."""

from capstan.use_hooks import BorrowedParams as ZeROOrderedDict


def ensure_zero_ordered_dict(module):
    """Parameters of a module that was added late are looked up like those of the others."""
    params = getattr(module, "_parameters", None)
    if params is None or isinstance(params, ZeROOrderedDict):
        return
    if not hasattr(module, "_original_parameters"):
        module._original_parameters = params
    module._parameters = ZeROOrderedDict(params)


class DeepSpeedZeRoOffload:
    """Lets callers take the hooks of stage 3 away for a while, and put them back."""

    def __init__(self, engine):
        self._engine, self.module = engine, engine.module

    @property
    def forward_hooks(self):
        return self._engine.use_handles()

    @property
    def backward_hooks(self):
        return []

    def setup_zero_stage3_hooks(self):
        self._engine.watch_uses()

    def _register_deepspeed_module(self, module, count=0):
        self._engine.watch_uses()

    def _remove_module_hooks(self):
        self._engine.unwatch_uses()

    def empty_partition_cache(self):
        self._engine.core.give_back()

    @property
    def overflow(self):
        return False
