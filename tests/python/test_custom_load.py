"""load_checkpoint with the script's own way of putting weights into the module."""

import pytest
import torch

import ranks

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

WORLD = 2


def engine_of(model, stage):
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
              "bf16": {"enabled": True}, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]


class Renamed(torch.nn.Module):
    """What the saved model called `0` is `front` here, and there is a head that it did not have."""

    def __init__(self):
        super().__init__()
        self.front = torch.nn.Linear(5, 7)
        self.head = torch.nn.Linear(7, 2)


def into_front(src, dst):
    dst.front.load_state_dict({name.removeprefix("0."): value for name, value in src.items()})


def rename(stage, folder):
    torch.manual_seed(1)
    saved = engine_of(torch.nn.Sequential(torch.nn.Linear(5, 7)), stage)
    weights = {name: saved.core.read_param(i).clone() for i, name in enumerate(("weight", "bias"))}
    saved.save_checkpoint(folder, client_state={"ema": torch.arange(4), "pair": (1, 2)})
    torch.manual_seed(2)
    engine = engine_of(Renamed(), stage)
    head = deepspeed.utils.safe_get_full_fp32_param(engine.module.head.weight)
    with pytest.raises(Exception, match="front.weight"):
        engine.load_checkpoint(folder, load_optimizer_states=False)
    _, client = engine.load_checkpoint(folder, load_optimizer_states=False, custom_load_fn=into_front)
    assert torch.equal(client["ema"], torch.arange(4)) and client["pair"] == (1, 2)
    for name, value in weights.items():
        param = getattr(engine.module.front, name)
        assert torch.equal(deepspeed.utils.safe_get_full_fp32_param(param), value.float()), name
    assert torch.equal(deepspeed.utils.safe_get_full_fp32_param(engine.module.head.weight), head)


@pytest.mark.parametrize("stage", [1, 3])
def test_the_scripts_own_function_puts_the_weights_where_they_belong(stage, tmp_path):
    ranks.run(WORLD, rename, stage, str(tmp_path))
