"""Engines, configuration and schedules."""

from deepspeed.runtime.base_optimizer import DeepSpeedOptimizer, ZeROOptimizer  # noqa: F401
