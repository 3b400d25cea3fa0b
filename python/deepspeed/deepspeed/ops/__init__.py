"""Optimizers and the table of operations that this installation has."""

from deepspeed.ops import adagrad, adam, lamb, lion  # noqa: F401
from deepspeed.ops.op_builder import compatible_ops

__compatible_ops__ = compatible_ops()
