"""Importing the packages and making engines needs nothing but torch."""

import os
import subprocess
import sys

WITH_TORCH_ALONE = """
import sys

sys.modules["numpy"] = sys.modules["pydantic"] = None  # as if they were not installed
import torch

import deepspeed

for stage, section in ((0, "fp16"), (1, "bf16"), (2, "none"), (3, "bf16")):
    model = torch.nn.Linear(16, 4)
    config = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
              "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
              "zero_optimization": {"stage": stage, "offload_optimizer": {"device": "cpu"}}}
    if section != "none":
        config[section] = {"enabled": True}
    engine, _, _, schedule = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.randn(8, 16, dtype=engine.param_dtype)).float().square().mean())
    engine.step()
    assert engine.was_step_applied() and engine.zero_cpu_offload()
    assert not engine.zero_gather_16bit_weights_on_model_save()
    engine.save_checkpoint(sys.argv[1], client_state={"best": 1.5, "seen": torch.arange(3)})
    _, client = engine.load_checkpoint(sys.argv[1])
    assert client["best"] == 1.5 and client["seen"].tolist() == [0, 1, 2]
"""


def test_engines_are_made_where_no_other_package_is_installed(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    subprocess.run([sys.executable, "-c", WITH_TORCH_ALONE, str(tmp_path)], env=environment, check=True, timeout=300)
