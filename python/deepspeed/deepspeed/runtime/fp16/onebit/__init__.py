"""Optimizers with compressed communication."""

from deepspeed.later import later_class

OnebitAdam = later_class("deepspeed.runtime.fp16.onebit.OnebitAdam")
OnebitLamb = later_class("deepspeed.runtime.fp16.onebit.OnebitLamb")
ZeroOneAdam = later_class("deepspeed.runtime.fp16.onebit.ZeroOneAdam")
