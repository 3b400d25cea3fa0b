"""What each stage of a pipeline does, step by step, as DeepSpeed's classes say it. The engine's own schedules are in the core."""

import functools
from abc import ABC, abstractmethod

from capstan import _C
from deepspeed.runtime.utils import call_to_str


class PipeInstruction:
    """One thing to do; its arguments are attributes."""

    def __init__(self, **kwargs):
        self.name, self.kwargs = type(self).__name__, kwargs
        for key, value in kwargs.items():
            setattr(self, key, value)

    def __repr__(self):
        return call_to_str(self.name, **self.kwargs)


class OptimizerStep(PipeInstruction):
    """Update the parameters and forget the gradients."""


class ReduceGrads(PipeInstruction):
    """Sum the gradients over the ranks of this stage."""


class ReduceTiedGrads(PipeInstruction):
    """Sum the gradients of weights that several stages share."""


class BufferOpInstruction(PipeInstruction):
    """About the tensors of one micro-batch: those in `buffer_id`."""

    def __init__(self, buffer_id, **kwargs):
        super().__init__(buffer_id=buffer_id, **kwargs)


class LoadMicroBatch(BufferOpInstruction):
    """Take a micro-batch: inputs on the first stage, labels on the last."""


class ForwardPass(BufferOpInstruction):
    """Run this stage's layers."""


class BackwardPass(BufferOpInstruction):
    """Differentiate them, and add to the gradients."""


class SendActivation(BufferOpInstruction):
    """Send the output to the next stage."""


class RecvActivation(BufferOpInstruction):
    """Receive it from the stage before."""


class SendGrad(BufferOpInstruction):
    """Send the gradient of the input to the stage before."""


class RecvGrad(BufferOpInstruction):
    """Receive the gradient of the output from the next stage."""


_BUFFER_CLASSES = {"load": LoadMicroBatch, "forward": ForwardPass, "backward": BackwardPass, "send_output": SendActivation,
                   "receive_input": RecvActivation, "send_gradient": SendGrad, "receive_gradient": RecvGrad}
_STEP_CLASSES = {"reduce_tied": ReduceTiedGrads, "reduce": ReduceGrads, "step": OptimizerStep}


class PipeSchedule(ABC):
    """The steps of one stage: an iterator over lists of instructions. Subclasses may have their own steps()."""

    def __init__(self, micro_batches, stages, stage_id):
        self.micro_batches, self.stages, self.stage_id = micro_batches, stages, stage_id
        self.prev_stage, self.next_stage = stage_id - 1, stage_id + 1
        self.it = None

    @abstractmethod
    def steps(self):
        """Yields the instructions of each step."""

    def num_pipe_buffers(self):
        return self.micro_batches

    def _valid_micro_batch(self, micro_batch_id):
        return 0 <= micro_batch_id < self.micro_batches

    def _valid_stage(self, stage_id):
        return 0 <= stage_id < self.stages

    def _buffer_idx(self, micro_batch_id):
        assert self._valid_micro_batch(micro_batch_id), f"there is no micro-batch {micro_batch_id}"
        return micro_batch_id % self.num_pipe_buffers()

    def _instructions(self, steps):
        """Of the core's steps."""
        for step in steps:
            yield [_BUFFER_CLASSES[name](self._buffer_idx(micro_batch)) if name in _BUFFER_CLASSES else _STEP_CLASSES[name]()
                   for name, micro_batch in step]

    stage = property(lambda self: self.stage_id)
    num_stages = property(lambda self: self.stages)
    num_micro_batches = property(lambda self: self.micro_batches)
    is_first_stage = property(lambda self: self.stage_id == 0)
    is_last_stage = property(lambda self: self.stage_id == self.stages - 1)

    def __iter__(self):
        self.it = None
        return self

    def __next__(self):
        if self.it is None:
            self.it = self.steps()
        return next(self.it)


class TrainSchedule(PipeSchedule):
    """One forward, one backward, in turns."""

    @functools.cached_property
    def _found(self):
        return _C.deepspeed_train_steps(self.stages, self.micro_batches, self.stage_id)

    def steps(self):
        return self._instructions(self._found[0])

    def num_pipe_buffers(self):
        return self._found[1]


class InferenceSchedule(PipeSchedule):
    """Forwards only."""

    @functools.cached_property
    def _found(self):
        return _C.deepspeed_inference_steps(self.stages, self.micro_batches, self.stage_id)

    def steps(self):
        return self._instructions(self._found[0])

    def num_pipe_buffers(self):
        return self._found[1]


class DataParallelSchedule(PipeSchedule):
    """No pipeline: forward and backward of each micro-batch, then the update."""

    def steps(self):
        for micro_batch in range(self.micro_batches):
            step = [LoadMicroBatch(buffer_id=0), ForwardPass(buffer_id=0), BackwardPass(buffer_id=0)]
            yield step + [ReduceGrads(), OptimizerStep()] if micro_batch == self.micro_batches - 1 else step

    def num_pipe_buffers(self):
        return 1
