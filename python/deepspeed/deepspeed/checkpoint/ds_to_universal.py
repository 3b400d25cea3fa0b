#!/usr/bin/env python
"""A checkpoint as one that every layout loads.

What save_checkpoint() writes is that already: it is copied under the new name. One of DeepSpeed's layout is converted.
"""

import argparse
import os

from capstan import _C
from capstan.durable_file import durable_file
from deepspeed.checkpoint.constants import AUTOEP_LAYERS_KEY


def parse_arguments(args=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input_folder", required=True, help="one checkpoint, e.g. path/global_step100")
    parser.add_argument("--output_folder", required=True, help="the folder to write the universal checkpoint to")
    unused = "accepted for compatibility: tensors are copied one by one through one buffer"
    parser.add_argument("--num_extract_workers", type=int, default=4, help=unused)
    parser.add_argument("--num_merge_workers", type=int, default=2, help=unused)
    parser.add_argument("--keep_temp_folder", action="store_true", help=unused)
    parser.add_argument("--no_strict", dest="strict", action="store_false", help="accepted for compatibility: nothing is guessed here")
    parser.add_argument("--inject_missing_state", action="store_true", help="accepted for compatibility: no extra state is needed here")
    return parser.parse_args(args)


def main(args):
    root, tag = os.path.split(os.path.normpath(os.path.abspath(args.output_folder)))
    if not os.path.isdir(args.input_folder):
        raise FileNotFoundError(f"there is no checkpoint {args.input_folder}")
    _C.copy_checkpoint(os.path.abspath(args.input_folder), root, tag)
    with durable_file(os.path.join(root, "latest_universal")) as beside, open(beside, "w") as latest:
        latest.write(tag)


def _aggregate_autoep_zero12_metadata(states):
    """The expert layers that the ranks' model-state files tell, without repetition; None where none does."""
    layers = []
    for state in states:
        noted = state.get(AUTOEP_LAYERS_KEY)
        if noted is None:
            continue
        if not isinstance(noted, list):
            raise RuntimeError(f"AutoEP metadata must be a list, not {type(noted).__name__}")
        layers += [layer for layer in noted if layer not in layers]
    return layers or None


if __name__ == "__main__":
    main(parse_arguments())
