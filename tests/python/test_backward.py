"""engine.backward(outputs, gradients), in the form of torch.autograd.backward: the bits of backward(loss)."""

import pytest
import ranks
import torch
from torch import nn

import capstan


def config(stage, dtype):
    return {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "zero_optimization": {"stage": stage},
            "fp16": {"enabled": dtype == "fp16"}}


def train(stage, dtype, by_outputs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    engine = capstan.initialize(model, config=config(stage, dtype))
    torch.manual_seed(1 + torch.distributed.get_rank())
    for _ in range(6):
        x, target = torch.randn(4, 8), torch.randint(0, 3, (4,))
        logits = engine(x.to(model[0].weight.dtype)).float()
        if by_outputs:
            leaf = logits.detach().requires_grad_()
            nn.functional.cross_entropy(leaf, target).backward()
            engine.backward(logits, leaf.grad)
        else:
            engine.backward(nn.functional.cross_entropy(logits, target))
        report = engine.step()
    assert report.applied and report.loss_scale == (65536 if dtype == "fp16" else 1)
    values = [capstan.read_state(param, "master").clone() for param in model.parameters()]
    engine.close()
    return values


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_has_the_bits_of_the_loss(stage, dtype):
    def body():
        pairs = zip(train(stage, dtype, True), train(stage, dtype, False))
        return all(torch.equal(a, b) for a, b in pairs)
    assert ranks.run(2, body) == [True, True]


def test_takes_several_outputs_and_scaled_gradients():
    def body():
        model = nn.Linear(2, 2, bias=False)
        engine = capstan.Engine(model, config={"train_batch_size": 1, "gradient_accumulation_steps": 1, "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
                                               "fp16": {"enabled": True, "loss_scale": 8}})
        out = engine(torch.eye(2).half()).float()
        engine.backward([out[0], out[1].sum()], [torch.full((2,), 16.0), None], already_scaled=True)
        return capstan.read_state(model.weight, "gradient").tolist()
    # Rows of the input are columns of the weight; the gradient is told without the scale of 8.
    assert ranks.run(1, body) == [[[2.0, 0.125], [2.0, 0.125]]]


def test_says_what_is_wrong():
    def body():
        model = nn.Linear(2, 2)
        engine = capstan.Engine(model, config={"train_batch_size": 1, "gradient_accumulation_steps": 1, "optimizer": {"type": "SGD", "params": {"lr": 1.0}}})
        out = engine(torch.eye(2))
        for outputs, gradients, text in [(out, [torch.ones(2, 2)] * 2, "1 output and 2 gradients were given"),
                                         (out, torch.ones(3), r"output 0 has shape \[2, 2\] but its gradient has shape \[3\]"),
                                         (out, True, "the gradients hold a bool"),
                                         ([out, 3], [None, None], "the outputs hold a int"),
                                         (out.detach(), torch.ones(2, 2), "output 0 does not require a gradient")]:
            with pytest.raises(capstan.ConfigError, match=text):
                engine.backward(outputs, gradients)
        with pytest.raises(capstan.ConfigError, match="the loss is a list"):
            engine.backward([out])
        engine.backward(out, torch.ones(2, 2))
        return engine.step().applied
    assert ranks.run(1, body) == [True]
