"""The section flops_profiler: a micro-batch of one step, counted on rank 0."""

import time
import weakref

import torch
import torch.distributed as dist

from capstan import _C
from capstan.profiler import Profile, write_report


class StepProfile:
    """Counts the first forward and backward once so many steps are over, and reports after that step. Of a pipeline, all
    micro-batches of the step."""

    def __init__(self, engine):
        self._engine, self.profile, self.report = weakref.proxy(engine), Profile(engine.module), None
        self._settings = engine.core_config.section("flops_profiler")
        self._step, self._began, self._micro_batches = self._settings["profile_step"], None, 1

    def before_forward(self, micro_batches=1):
        if self.profile.running and self.profile.saw_backward:
            self.profile.stop()
        if self._began is not None or self._engine.progress.steps != self._step or not torch.is_grad_enabled():
            return
        self._wait()
        self._began, self._micro_batches = time.perf_counter(), micro_batches
        self.profile.start()

    def after_backward(self):
        self.profile.stop()

    def before_step(self):
        self.profile.stop()
        if self._began is not None and self.report is None:
            self._wait()
            self._step_began = time.perf_counter()

    def after_step(self):
        if self._began is None or self.report is not None or self._engine.progress.steps == self._step:
            return
        self._wait()
        now, facts, shown = time.perf_counter(), self._facts(), self._settings
        facts.update_s, facts.step_s = now - self._step_began, now - self._began
        self.report = self.profile.report(facts, shown["module_depth"], shown["top_modules"], shown["detailed"])
        write_report(self.report, shown["output_file"], self._engine._warn)

    def _facts(self):
        config, facts = self._engine.core_config, _C.CostFacts()
        facts.step, facts.world_size, facts.data_ranks = self._step, dist.get_world_size(), config.world_size
        facts.model_ranks = max(1, facts.world_size // facts.data_ranks)
        facts.micro_batch = config.value("train_micro_batch_size_per_gpu") * self._micro_batches
        facts.micro_batches = config.value("gradient_accumulation_steps") // self._micro_batches
        facts.recompute_factor = self._settings["recompute_fwd_factor"]
        return facts

    def _wait(self):
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)


def step_profile_of(engine):
    """What counts in this engine; None on all ranks but the first, and where nothing is asked for."""
    asked = dist.get_rank() == 0 and engine.core_config.value("flops_profiler.enabled")
    return StepProfile(engine) if asked else None
