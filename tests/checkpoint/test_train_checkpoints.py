"""Checkpoints of capstan train as a user sees them: resume, look, check, thin out, hand over to Hugging Face."""

import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import numpy
import pytest
import torch

BIN = Path(os.environ["CAPSTAN_BIN"])
CAPSTAN = BIN / "capstan"
TIMEOUT = 240  # seconds; a run takes a few on an idle machine
TINY = ["--model", "gpt2-tiny", "--tokens", "64", "--eval-every", "0", "--eval-batches", "1", "--sample-tokens", "0",
        "--log-every", "1", "--vocab", "256"]


def config(stage=3, **extra):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    return json.dumps({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": zero,
                       "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, **extra})


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "numbers.txt").write_text("".join(f"The number {i} comes before {i + 1}.\n" for i in range(2000)))
    return folder


def run(*words, code=0):
    done = subprocess.run([CAPSTAN, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.parametrize("more", [[], ["--wait-for-saves"]], ids=["in the background", "at once"])
def test_a_resumed_run_with_dropout_goes_on_bit_for_bit(text, tmp_path, more):
    words = ["train", "-n", 2, "--config", config(bf16={"enabled": True}), "--data", text, *TINY, "--dropout", 0.1]
    run(*words, "--max-steps", 6, "--metrics", tmp_path / "whole.jsonl")
    output = run(*words, "--max-steps", 3, "--save", tmp_path / "saved", "--save-every", 2, *more)
    assert output.count("saved ") == 2
    output = run(*words, "--max-steps", 6, "--metrics", tmp_path / "resumed.jsonl", "--resume", tmp_path / "saved")
    assert "global_step3, the newest complete checkpoint" in output
    whole, resumed = losses(tmp_path / "whole.jsonl"), losses(tmp_path / "resumed.jsonl")
    assert list(resumed) == [4, 5, 6] and all(resumed[step] == whole[step] for step in resumed)


def test_a_resumed_run_neither_draws_nor_sends_weights_that_it_loads(text, tmp_path):
    words = ["train", "-n", 2, "--config", config(comms_logger={"enabled": True}), "--data", text, *TINY]

    def sent(*more):  # what the ranks tell each other before the first step
        output = run(*words, *more)
        line = next(line for line in output.splitlines() if line.startswith("  broadcast"))
        size, unit = line.split()[3:5]
        return float(size) * {"B": 1, "KiB": 1024, "MiB": 1 << 20}[unit]

    whole = sent("--max-steps", 1, "--save", tmp_path / "saved", "--resume", tmp_path / "saved")
    resumed = sent("--max-steps", 2, "--resume", tmp_path / "saved")
    assert whole > 4 * 120_000 and resumed < whole / 20  # norms and biases stay


def test_a_resumed_run_adds_to_its_metrics_and_its_curve_and_a_new_one_begins_them_anew(text, tmp_path):
    words = ["train", "-n", 1, "--config", config(), "--data", text, *TINY, "--metrics", tmp_path / "m.jsonl"]
    again = ["--save", tmp_path / "saved", "--resume", tmp_path / "saved"]
    (tmp_path / "m.jsonl").write_text("of another run\n")
    assert "the first step is not timed" in run(*words, *again, "--max-steps", 1)
    run(*words, *again, "--max-steps", 3, "--curve", tmp_path / "curve.html")
    of_step = losses(tmp_path / "m.jsonl")
    assert list(of_step) == [1, 2, 3]
    assert f"{of_step[1]:.4f} -&gt; {of_step[3]:.4f}" in (tmp_path / "curve.html").read_text()
    assert "since step 1<" in (tmp_path / "curve.html").read_text()
    assert "nothing left to do: 3 steps were taken already" in run(*words, *again, "--max-steps", 3)


def test_a_checkpoint_of_another_model_is_told_in_one_line(text, tmp_path):
    words = ["train", "-n", 2, "--config", config(), "--data", text, *TINY, "--max-steps", 1]
    run(*words, "--save", tmp_path)
    for more, told in ((["--width", 128, "--layers", 9], "n_embd 64 there, 128 here (--width), n_layer 2 there, 9 here (--layers)"),
                       (["--heads", 1], "n_head 2 there, 1 here (--heads)")):  # whose tensors would fit
        output = run(*words, "--resume", tmp_path, *more, code=2)
        assert output.count(f"the checkpoint belongs to another model: {told}\n") == 1, output
        assert "ln_1.weight" not in output


def test_a_schedule_that_a_longer_run_stretches_is_told(text, tmp_path):
    schedule = {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 1, "total_num_steps": "auto"}}
    words = ["train", "-n", 1, "--config", config(scheduler=schedule), "--data", text, *TINY]
    run(*words, "--max-steps", 3, "--save", tmp_path)
    assert "warning: the run before" not in run(*words, "--max-steps", 3, "--resume", tmp_path)
    output = run(*words, "--max-steps", 6, "--resume", tmp_path)
    assert "planned for 3 steps, this one for 6 steps" in output and "total_num_steps to 3" in output
    schedule["params"]["total_num_steps"] = 3  # as the message says
    kept = ["train", "-n", 1, "--config", config(scheduler=schedule), "--data", text, *TINY]
    assert "warning: the run before" not in run(*kept, "--max-steps", 6, "--resume", tmp_path)


def test_other_ranks_and_stages_go_on_with_the_very_next_samples(text, tmp_path):
    run("train", "-n", 2, "--config", config(3), "--data", text, *TINY, "--max-steps", 4, "--save", tmp_path / "saved",
        "--save-every", 2, "--metrics", tmp_path / "two.jsonl")
    one = json.loads(config(1))
    one["train_micro_batch_size_per_gpu"] = 4  # the same batch on one rank
    run("train", "-n", 1, "--config", json.dumps(one), "--data", text, *TINY, "--max-steps", 4, "--resume",
        tmp_path / "saved", "--metrics", tmp_path / "one.jsonl")
    assert losses(tmp_path / "one.jsonl") == {}  # step 4 was the last
    for path in (tmp_path / "saved" / "global_step4").iterdir():
        path.unlink()
    (tmp_path / "saved" / "global_step4").rmdir()
    run("train", "-n", 1, "--config", json.dumps(one), "--data", text, *TINY, "--max-steps", 4, "--resume",
        tmp_path / "saved", "--metrics", tmp_path / "one.jsonl")
    # The same samples, summed in another order.
    two, alone = losses(tmp_path / "two.jsonl"), losses(tmp_path / "one.jsonl")
    assert [alone[step] for step in (3, 4)] == pytest.approx([two[step] for step in (3, 4)], rel=1e-4)


def test_commands_show_check_and_thin_out(text, tmp_path):
    run("train", "-n", 1, "--config", config(), "--data", text, *TINY, "--max-steps", 3, "--save", tmp_path,
        "--save-every", 1)
    shown = run("checkpoint", "inspect", tmp_path, "--tag", "global_step3", "--tensors")
    assert "optimizer adamw: exp_avg, exp_avg_sq" in shown and "transformer.wte.weight" in shown
    assert run("checkpoint", "verify", tmp_path).count(": whole, ") == 3
    damaged = tmp_path / "global_step3" / "optimizer.exp_avg.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
    output = run("checkpoint", "verify", tmp_path, code=1)
    assert output.count(": whole, ") == 2 and "tensor 'transformer.ln_f.bias' is damaged" in output
    output = run("train", "-n", 1, "--config", config(), "--data", text, *TINY, "--max-steps", 3, "--resume", tmp_path)
    assert "global_step3 is skipped: tensor 'transformer.ln_f.bias' is damaged" in output
    assert "global_step2, the newest complete checkpoint" in output
    assert "removed 1: global_step1" in run("checkpoint", "prune", tmp_path, "--keep", 2)
    damaged.unlink()
    output = run("train", "-n", 1, "--config", config(), "--data", text, *TINY, "--max-steps", 3, "--resume", tmp_path)
    assert "is skipped" in output and "global_step2, the newest complete checkpoint" in output
    # A file that is not there is told once, not for each of its tensors.
    assert run("checkpoint", "verify", tmp_path, code=1).count("optimizer.exp_avg.safetensors") == 1
    assert "global_step2 -> " in run("checkpoint", "export", tmp_path, tmp_path / "theirs")


def test_a_folder_of_damaged_checkpoints_stops_the_run_and_is_left_as_it_is(text, tmp_path):
    words = ["train", "-n", 2, "--config", config(bf16={"enabled": True}), "--data", text, *TINY, "--max-steps", 1]
    run(*words, "--save", tmp_path)
    (tmp_path / "global_step1" / "master.safetensors").unlink()
    before = {path.name: path.read_bytes() for path in (tmp_path / "global_step1").iterdir()}
    output = run(*words, "--save", tmp_path, "--resume", tmp_path, code=2)
    assert "no checkpoint in this folder is complete" in output and "global_step1: master.safetensors is missing" in output
    assert f"capstan generate {tmp_path}/global_step1" in output and "starting from the beginning" not in output
    assert output.count("no checkpoint in this folder") == 1  # told once, not by each rank
    assert {path.name: path.read_bytes() for path in (tmp_path / "global_step1").iterdir()} == before
    # What the message promises.
    output = run("generate", tmp_path / "global_step1", "The", "--max-new-tokens", 3)
    assert "its weights are, and are loaded" in output and f"model: {tmp_path}/global_step1" in output
    assert "no checkpoint in this folder is complete" in run("generate", tmp_path, "The", code=2)


def test_a_new_run_into_the_folder_of_another_is_refused_unless_asked_for(text, tmp_path):
    words = ["train", "-n", 1, "--config", config(), "--data", text, *TINY, "--save", tmp_path / "run"]
    run(*words, "--max-steps", 3)
    for more in ([], ["--resume", tmp_path / "elsewhere"]):
        output = run(*words, "--max-steps", 1, *more, code=2)
        assert "already has 1 checkpoint, the newest is global_step3" in output
        assert f"--resume {tmp_path}/run" in output and "--new-run" in output
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "diagnosis", "global_step3", "latest"]
    run(*words, "--max-steps", 1, "--new-run")
    assert (tmp_path / "run" / "latest").read_text() == "global_step1"
    same = tmp_path / "run" / ".." / "run"  # the folder counts, not how it is written
    assert "global_step1, the newest complete" in run(*words, "--max-steps", 2, "--resume", same)


def test_commands_that_find_nothing_say_so_and_leave_nothing(text, tmp_path):
    saved = tmp_path / "run"
    run("train", "-n", 1, "--config", config(), "--data", text, *TINY, "--max-steps", 1, "--save", saved)
    for command in ("inspect", "verify"):
        output = run("checkpoint", command, saved, "--tag", "other", code=2)
        assert 'there is no checkpoint "other"' in output and "choose one of: global_step1" in output
    nowhere = tmp_path / "nowhere"
    assert "there is no checkpoint" in run("checkpoint", "prune", nowhere, "--keep", 1, code=2) and not nowhere.exists()
    assert "removed nothing" in run("checkpoint", "prune", saved, "--keep", 1)
    before = sorted(path.name for path in (saved / "global_step1").iterdir())
    assert "this folder already exists" in run("checkpoint", "export", saved, saved, code=2)
    assert sorted(path.name for path in (saved / "global_step1").iterdir()) == before


def test_a_killed_run_goes_on_from_its_last_save(text, tmp_path):
    words = [CAPSTAN, "train", "-n", "2", "--config", config(), "--data", str(text), *TINY, "--max-steps", "100000",
             "--save", str(tmp_path), "--save-every", "1", "--keep-last", "3"]
    for _ in range(2):
        process = subprocess.Popen([*words, "--resume", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, start_new_session=True)
        saved = []
        for line in process.stdout:
            saved += [line.split("/")[-1].split()[0]] if line.startswith("saved ") else []
            if len(saved) == 4:
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT)
        time.sleep(1)  # ranks that outlive their launcher end by themselves
        output = run("checkpoint", "verify", tmp_path)
        newest = max(int(line.split("global_step")[1].split(":")[0]) for line in output.splitlines())
        assert "DAMAGED" not in output and newest >= int(saved[-1].removeprefix("global_step"))


def test_a_second_job_is_told_who_saves_here_and_the_first_goes_on(text, tmp_path):
    words = ["train", "-n", "1", "--config", config(), "--data", str(text), *TINY, "--save", str(tmp_path)]
    first = subprocess.Popen([CAPSTAN, *words, "--save-every", "1", "--keep-last", "2", "--max-steps", "100000"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        next(line for line in first.stdout if line.startswith("saved "))
        second = subprocess.run([CAPSTAN, *words, "--max-steps", "1"], capture_output=True, text=True, timeout=TIMEOUT)
        assert second.returncode != 0 and "another job is saving into this folder" in second.stdout + second.stderr
        next(line for line in first.stdout if line.startswith("saved "))
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(TIMEOUT)
    time.sleep(1)  # ranks that outlive their launcher end by themselves
    assert "DAMAGED" not in run("checkpoint", "verify", tmp_path)


@pytest.mark.parametrize("more", [[], ["--wait-for-saves"]], ids=["in the background", "at once"])
def test_a_full_disk_ends_the_run_with_a_clear_error_and_the_saved_stays(text, tmp_path, more):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2500k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        done = subprocess.run([CAPSTAN, "train", "-n", "1", "--config", config(), "--data", text, *TINY, "--max-steps", "9",
                               "--save", tmp_path, "--save-every", "1", *more], capture_output=True, text=True, timeout=TIMEOUT)
        assert done.returncode != 0 and "ENOSPC" in done.stdout + done.stderr, done.stdout + done.stderr
        assert run("checkpoint", "verify", tmp_path).count(": whole, ") == 1
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__")
    return {name: numpy.frombuffer(data[8 + length + e["data_offsets"][0]:8 + length + e["data_offsets"][1]],
                                   dtype=numpy.float32).reshape(e["shape"]) for name, e in header.items()}


def test_hugging_face_loads_the_folder_and_gives_equal_logits(text, tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    run("train", "-n", 2, "--config", config(), "--data", text, *TINY, "--max-steps", 2, "--save", tmp_path)
    folder = tmp_path / "global_step2"
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    weights = read_safetensors(folder / "model.safetensors")
    ids = torch.randint(0, model.config.vocab_size, (2, 48))
    # Our model on the same weights, through the program that tests/models compares with.
    lines = [" ".join([name, *map(str, value.shape)]) for name, value in weights.items()]
    (tmp_path / "weights.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "weights.bin").write_bytes(b"".join(value.tobytes() for value in weights.values()))
    (tmp_path / "ids.bin").write_bytes(ids.numpy().tobytes())
    c = model.config
    (tmp_path / "sizes.txt").write_text(f"{c.vocab_size} {c.n_positions} {c.n_embd} {c.n_layer} {c.n_head} 2 48")
    subprocess.run([BIN / "gpt_logits", tmp_path], check=True, timeout=120)
    logits = torch.from_numpy(numpy.fromfile(tmp_path / "logits.bin", dtype=numpy.float32)).view(2, 48, -1)
    # The same operations in fp32; kernels may sum in another order.
    torch.testing.assert_close(logits, model.eval()(input_ids=ids).logits, rtol=1e-5, atol=1e-5)
