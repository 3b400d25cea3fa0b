"""Who writes and reads the files that PipelineModule.save_state_dict() makes. Checkpoints of engines are the core's."""

from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine  # noqa: F401
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine  # noqa: F401
