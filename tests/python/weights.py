"""What a model holds, wherever its parts are."""

import capstan


def values(model):
    """Copies of all parameters, whole. Collective where they are sharded."""
    with capstan.gathered(model):
        return [p.detach().clone() for p in model.parameters()]
