"""zero.Init gives the weights of a construction outside of it, also where initialisers run when the model is complete."""

import ranks
import torch
from torch import nn

CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}


class LateModel(nn.Module):
    """Writes its weights in the ways that models use: functions of nn.init, methods, data, views of data."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8, padding_idx=0)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        nn.init.normal_(self.table.weight, std=0.02)
        self.table.weight.data[0].zero_()
        nn.init.orthogonal_(self.first.weight)
        self.first.bias.data.fill_(0.5)
        with torch.no_grad():
            self.second.weight.copy_(self.first.weight * 2)
            self.second.bias.uniform_()


def build(sharded):
    import deepspeed

    torch.manual_seed(5)
    if not sharded:
        return LateModel()
    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        return LateModel()


def compare():
    import deepspeed

    plain, sharded = build(False), build(True)
    assert all(p.shape == torch.Size([0]) for p in sharded.parameters())
    different = []
    for (name, p), q in zip(plain.named_parameters(), sharded.parameters()):
        with deepspeed.zero.GatheredParameters([q]):
            if not torch.equal(p.data, q.data):
                different.append(name)
    return different


def test_initialisers_of_a_complete_model_see_whole_parameters():
    assert ranks.run(2, compare) == [[], []]
