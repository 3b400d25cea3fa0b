"""capstan train as a user runs it: two ranks on the CPU, a tiny model, a folder of generated text."""

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
TINY = ["--model", "gpt2-tiny", "--tokens", "64", "--log-every", "1", "--eval-batches", "2", "--sample-tokens", "20"]
TIMEOUT = 240  # seconds; a run takes a few on an idle machine


def config(stage=3, micro=4, **extra):
    # A threshold of 0: else every parameter of so small a model would stay whole.
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    return json.dumps({"train_micro_batch_size_per_gpu": micro, "zero_optimization": zero,
                       "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, **extra})


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    lines = [f"The number {i} is followed by the number {i + 1}.\n" for i in range(2000)]
    (folder / "numbers.txt").write_text("".join(lines))
    return folder


def train(*words, check=True):
    done = subprocess.run([CAPSTAN, "train", *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def read_metrics(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if "loss" in line], [line for line in lines if "validation_loss" in line]


def test_every_stage_gives_the_same_losses(text, tmp_path):
    losses = {}
    for stage in (0, 3):
        metrics = tmp_path / f"{stage}.jsonl"
        train("-n", 2, "--config", config(stage, gradient_accumulation_steps=1), "--data", text, "--max-steps", 5,
              "--metrics", metrics, *TINY, "--sample-tokens", 0)
        losses[stage] = [line["loss"] for line in read_metrics(metrics)[0]]
    assert losses[0] == losses[3]


def test_hybrid_sharding_gives_the_losses_of_its_plain_runs(text, tmp_path):
    def losses(name, zero, **capstan):
        metrics = tmp_path / f"{name}.jsonl"
        whole = {"stage": 3, "stage3_param_persistence_threshold": 0, **zero}
        train("-n", 4, "--config", config(micro=1, zero_optimization=whole, capstan=capstan), "--data", text, "--max-steps", 3,
              "--metrics", metrics, *TINY, "--sample-tokens", 0)
        return [line["loss"] for line in read_metrics(metrics)[0]]

    assert losses("near", {"zero_hpz_partition_size": 2}) == losses("plain", {})
    assert losses("groups", {"mics_shard_size": 2}) == losses("blocks", {}, reduce_in_blocks_of=2)


def wait_for_steps(metrics):
    deadline = time.time() + TIMEOUT
    while time.time() < deadline and (not metrics.exists() or metrics.read_text().count("\n") < 3):
        time.sleep(0.1)


@pytest.mark.parametrize("ranks, number", [(1, signal.SIGINT), (2, signal.SIGINT), (1, signal.SIGTERM), (1, signal.SIGHUP), (2, signal.SIGHUP)])
def test_a_signal_ends_the_run_after_the_current_step_with_a_summary(text, tmp_path, ranks, number):
    metrics = tmp_path / "m.jsonl"
    run = subprocess.Popen([CAPSTAN, "train", "-n", str(ranks), "--config", config(), "--data", text, "--max-steps", "100000",
                            "--eval-every", "0", "--metrics", metrics, *TINY], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True,
                           preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # nohup would ignore it
    try:
        wait_for_steps(metrics)
        run.send_signal(number)
        output, _ = run.communicate(timeout=TIMEOUT)
    finally:
        run.kill()
    assert run.returncode == 128 + number, output
    assert "on request" in output and "validation loss" in output


def ranks_of(metrics):
    """Process numbers of the ranks of the run that writes this file."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # no process, or it ended while we looked
        if words[0].endswith(b"capstan-engine") and os.fsencode(metrics) in words:
            found.append(int(entry.name))
    return sorted(found)


def test_a_killed_rank_ends_the_run_at_once(text, tmp_path):
    """The others stand in a step that never ends. Who asks them to end in order gives them ten minutes; not so here."""
    metrics = tmp_path / "m.jsonl"
    run = subprocess.Popen([CAPSTAN, "train", "-n", "3", "--config", config(), "--data", text, "--max-steps", "100000",
                            "--eval-every", "0", "--metrics", metrics, *TINY], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    try:
        wait_for_steps(metrics)
        os.kill(ranks_of(metrics)[1], signal.SIGKILL)
        output, _ = run.communicate(timeout=TIMEOUT)
    finally:
        run.kill()
    assert run.returncode == 128 + signal.SIGKILL and "was killed from outside" in output, output
    assert "stopping after this step" not in output and not ranks_of(metrics)


def test_a_stop_signal_is_heard_while_the_data_is_read(tmp_path):
    data = tmp_path / "endless.txt"
    os.mkfifo(data)
    run = subprocess.Popen([CAPSTAN, "train", "-n", "1", "--config", config(), "--data", data, *TINY],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        with open(data, "w"):  # returns when the run has begun to read
            run.send_signal(signal.SIGTERM)
            run.communicate(timeout=TIMEOUT)
    finally:
        run.kill()
    assert run.returncode == -signal.SIGTERM


def measured(text, metrics, *words):
    """What the run says, the losses of its steps and the last one of its validation."""
    said = train("--data", text, "--metrics", metrics, *TINY, "--sample-tokens", 0, *words).stdout
    steps, validations = read_metrics(metrics)
    return said, [line["loss"] for line in steps], validations[-1]["validation_loss"]


def test_ranks_without_communication_train_as_one_alone_does(text, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sums in one order on however many ranks
    words = ["--config", config(), "--max-steps", 4]
    said, apart, _ = measured(text, tmp_path / "apart", "-n", 2, "--no-communication", *words)
    assert said.count("step 4/4") == 1 and "1 rank on cpu" in said
    _, alone, _ = measured(text, tmp_path / "alone", "-n", 1, *words)
    said, together, _ = measured(text, tmp_path / "together", "-n", 2, *words)
    assert "2 ranks on cpu" in said
    assert apart == alone and apart[1:] != together[1:]


def test_without_optimizer_steps_the_model_stays_as_it_is(text, tmp_path):
    words = ["-n", 2, "--config", config(stage=2)]
    _, losses, once = measured(text, tmp_path / "once", *words, "--max-steps", 1, "--no-optimizer-step")
    said, losses, often = measured(text, tmp_path / "often", *words, "--max-steps", 4, "--no-optimizer-step")
    assert "step 4/4" in said and len(losses) == 4
    _, _, trained = measured(text, tmp_path / "trained", *words, "--max-steps", 4)
    assert once == often and often != trained


def test_a_token_file(text, tmp_path):
    tokens = tmp_path / "tokens.bin"
    tokens.write_bytes(b"".join((i * 7 % 100).to_bytes(2, "little") for i in range(5000)))
    done = train("-n", 1, "--config", config(), "--data", tokens, "--vocab", 100, "--max-steps", 3, *TINY)
    assert "5000 tokens" in done.stdout
    wrong = train("-n", 1, "--config", config(), "--data", tokens, "--vocab", 50, "--max-steps", 3, *TINY, check=False)
    assert wrong.returncode == 2 and "outside the vocabulary of 50" in wrong.stderr


def test_mistakes_are_named(text, tmp_path):
    assert "did you mean gpt2-large?" in train("--model", "gpt2-lage", check=False).stderr
    assert "zero_optimization.stage" in train("-n", 1, "--config", config(stage=7), "--data", text, check=False).stderr
    for words in (["--config", config(stage=7)], ["--config", tmp_path / "no.json"], ["--width", 65], ["--model", "gpt3"], ["--tokens", 4096],
                  ["--data", "/nowhere"], ["--metrics", tmp_path / "no" / "m.jsonl"]):
        done = train("-n", 3, "--data", text, *words, check=False)  # told once, and not by a rank
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("error: ") == 1, done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    done = train("-n", 3, "--data", empty, check=False)
    said = [line for line in done.stderr.splitlines() if "there is no text" in line]
    assert done.returncode == 2 and len([line for line in said if not line.startswith("[rank ")]) == 1, done.stderr


def test_places_that_cannot_be_written_are_told_before_training(text, tmp_path):
    file = text / "numbers.txt"
    for words, where in ((["--save", file], file), (["--save", file / "x"], file / "x"), (["--save", "/proc/here"], "/proc/here"),
                         (["--curve", tmp_path / "no" / "c.html"], tmp_path / "no" / "c.html"), (["--curve", tmp_path], tmp_path)):
        done = train("-n", 1, "--data", text, *TINY, "--max-steps", 3, *words, check=False)
        assert done.returncode == 2 and f"where: {where}\n" in done.stderr and "step 1/3" not in done.stdout, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_what_was_said_before_an_error_stands_before_it(text):
    done = subprocess.run([CAPSTAN, "train", "-n", "1", "--data", text, *TINY, "--max-steps", "2", "--curve", "/dev/full"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT)
    assert done.returncode == 2 and -1 < done.stdout.find("stage 3: ") < done.stdout.find("error: cannot write the loss curve")


def test_a_terminal_that_cannot_redraw_gets_plain_lines(text):
    for kind, bars in (("dumb", 0), ("xterm", 1)):
        master, slave = pty.openpty()
        with subprocess.Popen([CAPSTAN, "train", "-n", "1", "--data", text, *TINY, "--max-steps", "2"], stdout=slave, stdin=slave,
                              env={**os.environ, "TERM": kind}) as process:
            os.close(slave)
            shown = b""
            try:
                while chunk := os.read(master, 4096):
                    shown += chunk
            except OSError:
                pass  # the other end is closed
        os.close(master)
        assert process.returncode == 0 and b"step 2/2" in shown and (b"\x1b[" in shown) == bool(bars), shown
