"""Modules and parameters that are attached to a model while an engine has it: used, but not trained by that engine."""

import weakref

from torch.nn.modules import module as registration

WARNING = 2  # of the engine's log


class LateParts:
    """Notices them by torch's registration hooks, so that a forward need not look. remove() ends that."""

    def __init__(self, engine):
        view = engine.view
        self._model, self._trained, self._engine = view.modules[""], view.index, weakref.ref(engine)
        self._known, self._news = weakref.WeakSet(view.modules.values()), False
        self._handles = [registration.register_module_module_registration_hook(self._on_module),
                         registration.register_module_parameter_registration_hook(self._on_param)]

    def _on_module(self, parent, name, part):
        if parent not in self._known or part is None:
            return
        self._news = True
        for module in part.modules():
            if module not in self._known:
                self._known.add(module)
                hooks = self._engine()._use_hooks
                if hooks is not None:
                    hooks.lend(module)  # it may share parameters that are sharded

    def _on_param(self, parent, name, param):
        self._news = self._news or parent in self._known

    def tell(self, log):
        """Says once which new parameters want gradients: nobody updates them."""
        if not self._news:
            return
        self._news = False
        names = [name for name, param in self._model.named_parameters()
                 if param.requires_grad and id(param) not in self._trained]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            log(WARNING, f"parameters were added to the model after initialize(): {', '.join(names[:3])}{more}. They are used, but "
                         "neither sharded nor updated by this engine: add them before initialize(), or freeze them")

    def remove(self):
        for handle in self._handles:
            handle.remove()
        self._handles = []
