"""Kernel injection for inference: the names only."""

from deepspeed.later import later_function

replace_transformer_layer = later_function("deepspeed.module_inject.replace_transformer_layer")
revert_transformer_layer = later_function("deepspeed.module_inject.revert_transformer_layer")
set_autotp_mode = later_function("deepspeed.module_inject.set_autotp_mode")
