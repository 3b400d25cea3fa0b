"""A training run with everything on disk, for tests that make its disk or itself fail."""

import json
import os
import subprocess
from pathlib import Path

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
TIMEOUT = 240  # seconds; a run takes a few on an idle machine


class NvmeRun:
    """`capstan train` in `folder`, stage 3, parameters and optimizer on disk, a checkpoint every two steps."""

    def __init__(self, folder, ranks=2, steps=8):
        self.ranks, self.steps = ranks, steps
        self.text, self.swap, self.metrics = folder / "text.txt", folder / "swap", folder / "metrics.jsonl"
        self.text.write_text("".join(f"The number {i} is followed by the number {i + 1}.\n" for i in range(500)))
        disk = {"device": "nvme", "nvme_path": str(self.swap), "pin_memory": False}
        self.config = json.dumps({
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": 20000,
                                  "offload_optimizer": disk, "offload_param": disk}})

    def command(self, saves):
        self.metrics.unlink(missing_ok=True)
        return [str(word) for word in [
            CAPSTAN, "train", "-n", self.ranks, "--model", "gpt2-tiny", "--tokens", 32, "--data", self.text,
            "--max-steps", self.steps, "--eval-every", 0, "--eval-batches", 1, "--sample-tokens", 0,
            "--config", self.config, "--metrics", self.metrics, "--log-every", 1,
            "--save", saves, "--resume", saves, "--save-every", 2, "--keep-last", 2]]

    def run(self, saves, check=True, **environment):
        done = subprocess.run(self.command(saves), capture_output=True, text=True, timeout=TIMEOUT,
                              env={**os.environ, **environment})
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def losses(self):
        """By step, of what the last run wrote."""
        found = {}
        for line in self.metrics.read_text().splitlines() if self.metrics.exists() else []:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # cut off by a kill
                continue
            if "loss" in entry:
                found[entry["step"]] = entry["loss"]
        return found

    def swap_files(self):
        return sorted(self.swap.glob("capstan-swap-*")) if self.swap.exists() else []
