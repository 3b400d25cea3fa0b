"""DeepSpeed's flops profiler: capstan.profiler by its names."""

from deepspeed.profiling.flops_profiler.profiler import *  # noqa: F401,F403
