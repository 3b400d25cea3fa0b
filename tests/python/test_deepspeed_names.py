"""What scripts written for DeepSpeed call beside the engine: weights from checkpoints, autocast, late construction."""

import shutil
import subprocess
import sys

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.runtime.torch_autocast import get_comm_dtype, has_comm_dtype  # noqa: E402
from deepspeed.utils import zero_to_fp32  # noqa: E402


def config(stage, **more):
    return {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight
        self.body.bias.requires_grad_(False)
        self.register_buffer("count", torch.tensor([3.0]))

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


def test_the_degrees_of_parallelism_are_noted_as_in_deepspeed_s_checkpoints():
    from deepspeed.checkpoint.constants import CHECKPOINT_PARALLEL_DIMS
    from deepspeed.runtime.engine import _checkpoint_parallel_metadata

    class Unit:
        get_model_parallel_world_size = staticmethod(lambda: 2)
        get_pipe_parallel_world_size = staticmethod(lambda: 3)

    assert _checkpoint_parallel_metadata(Unit)[CHECKPOINT_PARALLEL_DIMS] == {"pp_degree": 3, "tp_degree": 2}
    assert _checkpoint_parallel_metadata(None)[CHECKPOINT_PARALLEL_DIMS] == {"pp_degree": 1, "tp_degree": 1}


def save(folder, stage):
    torch.manual_seed(0)
    model = Tied()
    engine = deepspeed.initialize(model=model, config=config(stage, bf16={"enabled": True}))[0]
    for step in range(2):
        x = torch.arange(6).view(2, 3) + dist.get_rank()
        engine.backward(nn.functional.cross_entropy(engine(x).float().flatten(0, 1), x.flatten()))
        engine.step()
    engine.save_checkpoint(folder)
    return {name: deepspeed.utils.safe_get_full_fp32_param(param).cpu()
            for name, param in model.named_parameters() if param.requires_grad}


@pytest.mark.parametrize("stage", [1, 3])
def test_fp32_weights_come_whole_from_a_sharded_checkpoint(tmp_path, monkeypatch, capsys, stage):
    masters = ranks.run(2, save, str(tmp_path), stage)[0]
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert set(state) == set(Tied().state_dict())
    for name, value in masters.items():
        assert torch.equal(state[name], value) and value.dtype == torch.float32
    assert state["head.weight"] is state["embed.weight"]
    assert "body.bias" not in zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(
        tmp_path, exclude_frozen_parameters=True)
    lazy = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path, lazy_mode=True)
    assert torch.equal(lazy["head.weight"], masters["embed.weight"])
    loaded = zero_to_fp32.load_state_dict_from_zero_checkpoint(Tied(), tmp_path)
    assert torch.equal(loaded.body.weight, masters["body.weight"])
    monkeypatch.setattr(sys, "argv", ["zero_to_fp32.py", str(tmp_path), str(tmp_path / "out"), "--max_shard_size", "300"])
    reads, read = [], zero_to_fp32._Weights.__getitem__
    monkeypatch.setattr(zero_to_fp32._Weights, "__getitem__", lambda self, name: reads.append(name) or read(self, name))
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "index.json").write_text("{")
    zero_to_fp32.main()
    assert sorted(reads) == sorted(set(state) - {"head.weight"})  # each once: the files are planned from sizes alone
    files = sorted((tmp_path / "out").glob("pytorch_model-*.bin"))
    told = capsys.readouterr().out
    assert f"reading {tmp_path}/global_step2: {len(state)} tensors, " in told and "newer is skipped: " in told
    assert all(f"wrote {file}: " in told for file in [*files, tmp_path / "out" / "pytorch_model.bin.index.json"])
    assert len(files) > 1 and (tmp_path / "out" / "pytorch_model.bin.index.json").exists()
    parts = [torch.load(file, weights_only=True) for file in files]
    assert {name for part in parts for name in part} == set(state)
    once = [{value.data_ptr(): value.nbytes for value in part.values()} for part in parts]  # tied weights share their bytes
    assert all(len(sizes) == 1 or sum(sizes.values()) <= 300 for sizes in once)


def test_a_folder_without_a_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match="there is no checkpoint here"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    with pytest.raises(OSError, match="there is no index.json in it"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path, tag="other")
    copy = shutil.copy(zero_to_fp32.__file__, tmp_path)  # as it stands beside checkpoints
    script = [sys.executable, copy, tmp_path, tmp_path / "out"]
    for words, told in (([], "there is no checkpoint here"), (["--max_shard_size", "lots"], "not a size like 5GB")):
        done = subprocess.run([*script, *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def autocast(stage):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    section = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": ["torch.nn.modules.linear.Linear"]}
    engine = deepspeed.initialize(model=model, config=config(stage, torch_autocast=section))[0]
    assert get_comm_dtype(model[0].weight) == torch.bfloat16 and not has_comm_dtype(model[1].weight)
    losses = []
    for step in range(3):
        out = engine(torch.ones(2, 8) * (1 + step + dist.get_rank()))
        assert out.dtype == torch.bfloat16 and model[0].weight.dtype == torch.float32
        loss = out.float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_autocast_gives_the_same_bits_at_every_stage():
    results = [ranks.run(2, autocast, stage) for stage in range(4)]
    assert results[1:] == results[:1] * 3


def skipped_init():
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = nn.Sequential(nn.utils.skip_init(nn.Linear, 4, 6), nn.Linear(6, 2))
    assert [tuple(p.shape) for p in model.parameters()] == [(0,)] * 4
    assert tuple(model[0].weight.ds_shape) == (6, 4)
    assert nn.Linear(2, 2, device="meta").to_empty(device="cpu").weight.shape == (2, 2)  # as ever, outside
    engine = deepspeed.initialize(model=model, config=config(3))[0]
    with deepspeed.zero.GatheredParameters(model.parameters(), modifier_rank=1):
        for param in model.parameters():
            param.data.fill_(0.5 if torch.distributed.get_rank() == 1 else 0.25)
    with deepspeed.zero.GatheredParameters(model.parameters()):
        assert all(param.eq(0.5).all() for param in model.parameters())
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
    return engine.was_step_applied()


def test_layers_built_without_their_initialisation_are_sharded_too():
    assert all(ranks.run(2, skipped_init))
