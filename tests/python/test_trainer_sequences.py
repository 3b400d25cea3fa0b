"""The Hugging Face Trainer with sequences that ranks share, unchanged."""

import pytest
import ranks
import torch

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
accelerate = pytest.importorskip("accelerate", reason="needs the package accelerate")

from accelerate.utils import DeepSpeedSequenceParallelConfig  # noqa: E402
from hugging_face import VOCABULARY, arguments, config_of, data  # noqa: E402

LOADED = (transformers.LlamaForCausalLM, transformers.Trainer)  # once here and not in every rank, which is forked from this process


def train(folder, stage, size):
    """Losses of the steps and of an evaluation, where each rank has whole sequences."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, attn_implementation="sdpa"))
    more = {}
    if size > 1:
        how = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation="sdpa")
        more["parallelism_config"] = accelerate.ParallelismConfig(sp_size=size, sp_backend="deepspeed", sp_handler=how)
    args = arguments(folder, config_of(stage), **more)
    args.max_grad_norm = 0.0  # the Trainer's loss is gathered: its gradients are larger, as with DeepSpeed
    rows = [{**row, "position_ids": torch.arange(16)} for row in data(32)]
    for row in rows:
        del row["attention_mask"]
    trainer = transformers.Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows[:8])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, trainer.evaluate()["eval_loss"], trainer.model_wrapped.sequence_parallel_size


@pytest.mark.parametrize("stage", [2, 3])
def test_a_trainer_with_shared_sequences_trains_as_one_rank_does(tmp_path, stage):
    wanted = ranks.run(1, train, str(tmp_path), stage, 1)[0]
    assert len(wanted[0]) == 4 and wanted[0][-1] < wanted[0][0]
    for losses, evaluated, size in ranks.run(2, train, str(tmp_path), stage, 2):
        assert losses == pytest.approx(wanted[0], abs=2e-3) and evaluated == pytest.approx(wanted[1], abs=2e-3)
        assert size == 2
