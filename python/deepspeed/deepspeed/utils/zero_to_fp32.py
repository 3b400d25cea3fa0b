#!/usr/bin/env python
"""Whole fp32 weights from a sharded checkpoint, as a script and as functions. Tensors are read one at a time."""

import argparse
import glob
import os
import re
import sys

from capstan.errors import Error
from capstan.stored_weights import StoredWeights as _Weights
from capstan.stored_weights import export_weights

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _numbers(text):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def get_checkpoint_files(checkpoint_dir, pattern):
    found = sorted(glob.glob(os.path.join(checkpoint_dir, pattern)), key=_numbers)
    if not found:
        raise FileNotFoundError(f"no file in '{checkpoint_dir}' is called {pattern}")
    return found


def get_optim_files(checkpoint_dir):
    return get_checkpoint_files(checkpoint_dir, "*_optim_states.pt")


def get_model_state_files(checkpoint_dir):
    return get_checkpoint_files(checkpoint_dir, "*_model_states.pt")


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag=None, exclude_frozen_parameters=False,
                                             lazy_mode=False):
    """All weights of a checkpoint in fp32. With lazy_mode a mapping that reads a tensor when it is asked for."""
    weights = _Weights(checkpoint_dir, tag, exclude_frozen_parameters)
    if lazy_mode:
        return weights
    return weights.several(weights)


def load_state_dict_from_zero_checkpoint(model, checkpoint_dir, tag=None):
    """`model`, on the CPU, with the weights of a checkpoint."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def _bytes(size):
    match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", str(size))
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"max_shard_size {size!r} is not a size like 5GB")
    return int(match[1]) * _UNITS[match[2].upper()]


def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir, output_dir, max_shard_size="5GB",
                                               safe_serialization=False, tag=None, exclude_frozen_parameters=False):
    """Writes the weights as pytorch_model.bin or model.safetensors, in several files where they are larger."""
    limit = None if max_shard_size is None else _bytes(max_shard_size)
    export_weights(_Weights(checkpoint_dir, tag, exclude_frozen_parameters), output_dir, max_file_bytes=limit,
                   safetensors=safe_serialization)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint_dir", help="the folder that holds the checkpoints, e.g. path/checkpoint-12")
    parser.add_argument("output_dir", help="the folder to write the weights to")
    parser.add_argument("--max_shard_size", default="5GB", help="largest size of one file")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors files")
    parser.add_argument("-t", "--tag", default=None, help="which checkpoint, e.g. global_step1; default: the newest")
    parser.add_argument("--exclude_frozen_parameters", action="store_true", help="leave out frozen parameters")
    parser.add_argument("-d", "--debug", action="store_true", help="list the weights")
    args = parser.parse_args()
    limit = _bytes(args.max_shard_size)
    weights = _Weights(args.checkpoint_dir, args.tag, args.exclude_frozen_parameters)
    export_weights(weights, args.output_dir, max_file_bytes=limit, safetensors=args.safe_serialization,
                   say=lambda line: print(line, flush=True))
    if args.debug:
        for name, value in weights.items():
            print(name, tuple(value.shape))


if __name__ == "__main__":
    try:
        main()
    except (Error, OSError, ValueError) as error:
        sys.exit(f"zero_to_fp32.py: {error}")
