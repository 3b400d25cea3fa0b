"""Inference engines: the names only."""

from deepspeed.later import later_class

InferenceEngine = later_class("deepspeed.InferenceEngine")
