"""Not available yet."""

from deepspeed.later import later_function

main = later_function("deepspeed.checkpoint.ds_to_universal.main")
