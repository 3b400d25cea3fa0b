"""Hugging Face's Trainer and an engine that ends: it goes back to the bare model, and wraps that anew."""

import gc


def hand_back(engine):
    """Whoever has `engine` as the wrapper of its model has the model again.

    A Trainer that is called again lets Accelerate destroy the engine, and then goes on with it: it takes a model that is
    wrapped for one that is prepared. Nothing tells it otherwise, so that its reference is found and set back.
    """
    model = engine.module
    for holder in gc.get_referrers(engine):
        own = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        if own.get("model_wrapped") is engine and own.get("model") is model:
            own["model_wrapped"] = model
            own["deepspeed"] = None
