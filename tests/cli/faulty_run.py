"""A run of two ranks in which one goes wrong: faulty_run.py FAULT STAGE."""

import os
import signal
import sys
import time

import torch

import capstan

fault, stage = sys.argv[1], int(sys.argv[2])
at_fault = os.environ["RANK"] == "1"
torch.manual_seed(3)
torch.set_num_threads(1)


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.step = number, 0
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        self.step += 1
        x = x + torch.tanh(self.linear(x))
        if at_fault and self.number == 1:
            if fault == "slow":
                time.sleep(0.4)  # 5 s in all, far beyond what a busy machine adds
            if fault == "nan" and self.step == 5:
                x = x * float("nan")
        return x


model = torch.nn.Sequential(*[Layer(i) for i in range(3)])
engine = capstan.initialize(model, {
    "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    "capstan": {"units": ["0", "1", "2"], "find_nan": fault == "nan"}},
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3))
for step in range(1, 13):
    if at_fault and fault == "killed" and step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = engine(torch.ones(2, 16)).square().mean()
    engine.backward(loss)
    engine.step()
    if at_fault and fault == "diverging" and step == 3:
        with torch.no_grad():
            model[1].linear.weight[3, 4] += 0.5
print("trained")
engine.close()
