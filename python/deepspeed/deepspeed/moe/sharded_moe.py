"""Not available yet."""

from deepspeed.later import later_class, later_function

top1gating = later_function("deepspeed.moe.sharded_moe.top1gating")
top2gating = later_function("deepspeed.moe.sharded_moe.top2gating")
topkgating = later_function("deepspeed.moe.sharded_moe.topkgating")
MOELayer = later_class("deepspeed.moe.sharded_moe.MOELayer")
TopKGate = later_class("deepspeed.moe.sharded_moe.TopKGate")
