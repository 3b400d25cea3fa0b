"""Our GPT-2 and Hugging Face's give the same logits, loss and gradients from the same weights."""

import os
import subprocess
from pathlib import Path

import numpy
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

# A vocabulary that needs padding inside, and one that does not.
SIZES = [dict(vocab=301, context=64, width=48, layers=3, heads=4), dict(vocab=256, context=32, width=32, layers=1, heads=1)]


def hugging_face_model(size):
    config = transformers.GPT2Config(
        vocab_size=size["vocab"], n_positions=size["context"], n_embd=size["width"], n_layer=size["layers"],
        n_head=size["heads"], bos_token_id=0, eos_token_id=0)
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, where mistakes hide
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def write_tensors(folder, stem, tensors):
    lines = [" ".join([name, *map(str, tensor.shape)]) for name, tensor in tensors]
    (folder / f"{stem}.txt").write_text("\n".join(lines) + "\n")
    (folder / f"{stem}.bin").write_bytes(b"".join(tensor.detach().contiguous().numpy().tobytes() for _, tensor in tensors))


def read_tensors(folder, stem):
    data = numpy.fromfile(folder / f"{stem}.bin", dtype=numpy.float32)
    tensors, start = {}, 0
    for line in (folder / f"{stem}.txt").read_text().splitlines():
        name, *shape = line.split()
        count = numpy.prod([int(n) for n in shape])
        tensors[name] = torch.from_numpy(data[start:start + count].reshape([int(n) for n in shape]))
        start += count
    assert start == len(data)
    return tensors


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"vocab{size['vocab']}")
def test_same_logits_loss_and_gradients(size, tmp_path):
    model = hugging_face_model(size)
    ids = torch.randint(0, size["vocab"], (2, size["context"] - 5))
    parameters = list(model.named_parameters())  # the tied output layer is not among them
    write_tensors(tmp_path, "weights", parameters)
    (tmp_path / "ids.bin").write_bytes(ids.numpy().tobytes())
    (tmp_path / "sizes.txt").write_text(" ".join(map(str, [*size.values(), *ids.shape])))
    program = Path(os.environ["CAPSTAN_BIN"]) / "gpt_logits"
    subprocess.run([program, tmp_path], check=True, timeout=120)

    expected = model(input_ids=ids, labels=ids)
    expected.loss.backward()
    logits = torch.from_numpy(numpy.fromfile(tmp_path / "logits.bin", dtype=numpy.float32)).view_as(expected.logits)
    # Same operations in fp32; kernels may sum in another order: a few units in the last place of the largest.
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)
    assert float((tmp_path / "loss.txt").read_text()) == pytest.approx(expected.loss.item(), rel=1e-5)
    gradients = read_tensors(tmp_path, "grads")
    assert set(gradients) == {name for name, _ in parameters}
    for name, parameter in parameters:
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
