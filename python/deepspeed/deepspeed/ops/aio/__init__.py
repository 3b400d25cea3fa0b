"""Asynchronous reads and writes of files."""

from deepspeed.ops.op_builder import AsyncIOBuilder  # noqa: F401
