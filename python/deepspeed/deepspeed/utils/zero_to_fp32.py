#!/usr/bin/env python
"""Whole fp32 weights from a sharded checkpoint."""

import glob
import os
import re

from deepspeed.later import later_function


def _numbers(text):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def get_checkpoint_files(checkpoint_dir, pattern):
    found = sorted(glob.glob(os.path.join(checkpoint_dir, pattern)), key=_numbers)
    if not found:
        raise FileNotFoundError(f"can't find {pattern} files in directory '{checkpoint_dir}'")
    return found


def get_optim_files(checkpoint_dir):
    return get_checkpoint_files(checkpoint_dir, "*_optim_states.pt")


def get_model_state_files(checkpoint_dir):
    return get_checkpoint_files(checkpoint_dir, "*_model_states.pt")


get_fp32_state_dict_from_zero_checkpoint = later_function("get_fp32_state_dict_from_zero_checkpoint")
load_state_dict_from_zero_checkpoint = later_function("load_state_dict_from_zero_checkpoint")
convert_zero_checkpoint_to_fp32_state_dict = later_function("convert_zero_checkpoint_to_fp32_state_dict")
main = later_function("zero_to_fp32")
