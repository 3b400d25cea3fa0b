"""capstan tune as a user runs it: real trials, on one or two ranks of the CPU."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
PYTHON = os.environ["CAPSTAN_PYTHON"]
TIMEOUT = 240  # seconds; a search takes a few on an idle machine
TINY = ["train", "--model", "gpt2-tiny", "--tokens", "32", "--vocab", "256", "--device", "cpu"]
ADAMW = {"type": "AdamW", "params": {"lr": 1e-3}}

# A job without torch that writes what an engine would: as fast as its micro-batch is large.
FAKE = """
import json, os, sys, time
config = json.load(open(sys.argv[sys.argv.index("--deepspeed_config") + 1]))
micro = config["train_micro_batch_size_per_gpu"]
what = dict(zip(sys.argv[1::2], sys.argv[2::2])).get("--at-" + str(micro), "")
with open("started", "a") as log:
    print(micro, file=log)
if what == "fail":
    raise SystemExit("no such data set")
if what == "memory":
    raise MemoryError("too large")
if what == "hang":
    time.sleep(1000)
if not config.get("autotuning", {}).get("enabled"):
    print("the job itself, with", micro)
    sys.exit()
if os.environ["RANK"] == "0":
    path = config["autotuning"]["metric_path"]
    record = {"stage": config.get("zero_optimization", {}).get("stage", 0), "micro_batch": micro,
              "accumulation_steps": config["gradient_accumulation_steps"], "latency": 0.1,
              "throughput": 10 * micro, "memory_bytes": 1000}
    open(path + ".new", "w").write(json.dumps(record))
    os.rename(path + ".new", path)
time.sleep(1000)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "numbers.txt").write_text("".join(f"The number {i}.\n" for i in range(2000)))
    (tmp_path / "fake.py").write_text(FAKE)
    return tmp_path


def environment(mark):
    outer = ("OMPI_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    return {**{k: v for k, v in os.environ.items() if not k.startswith(outer)}, "CUDA_VISIBLE_DEVICES": "",
            "CAPSTAN_TEST_MARK": str(mark)}


def left_of(mark):
    """Command lines of the living processes that this test has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"CAPSTAN_TEST_MARK={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return [line for line in found if line]


def start(folder, *words):
    return subprocess.Popen([CAPSTAN, *map(str, words)], cwd=folder, env=environment(folder), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(folder, *words, code=0):
    process = start(folder, *words)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == code, out + err
    assert left_of(folder) == []
    return out + err


def config_file(folder, **config):
    path = folder / "ds.json"
    path.write_text(json.dumps(config))
    return path


def tune_fake(folder, *words, flags=(), code=0, **autotuning):
    autotuning = {"max_train_micro_batch_size_per_gpu": 8, **autotuning}
    config_file(folder, zero_optimization={"stage": 1}, autotuning=autotuning)
    return run(folder, "tune", "-n", 1, *flags, "--no_local_rank", "fake.py", "--deepspeed_config", "ds.json", *words, code=code)


def started(folder):
    return [int(line) for line in (folder / "started").read_text().split()]


def best_config(folder, ranks=1):
    path = folder / "autotuning_results" / "ds_config_optimal.json"
    subprocess.run([CAPSTAN, "config", "check", path, "-n", str(ranks)], check=True, capture_output=True, timeout=TIMEOUT)
    return json.loads(path.read_text())


# Our own training

def test_the_best_of_real_trials_is_a_configuration_that_trains(folder):
    autotuning = {"start_profile_step": 2, "end_profile_step": 3, "max_train_micro_batch_size_per_gpu": 2}
    config_file(folder, train_micro_batch_size_per_gpu=1, optimizer=ADAMW, zero_optimization={"stage": [0, 3]},
                autotuning=autotuning)
    text = run(folder, "tune", "--run", *TINY, "-n", 2, "--data", "text", "--config", "ds.json", "--save", "saved",
               "--max-steps", 2, "--eval-batches", 1, "--sample-tokens", 0)
    trials = [line for line in text.splitlines() if line.startswith("trial ")]
    assert 3 <= len(trials) <= 4 and all("tokens/s)" in line and "ms per step" in line for line in trials), text
    best = best_config(folder, ranks=2)
    assert f"best: stage {best['zero_optimization']['stage']}, micro-batch {best['train_micro_batch_size_per_gpu']} x 1" in text
    assert best["train_batch_size"] == 2 * best["train_micro_batch_size_per_gpu"]
    assert best["autotuning"] == autotuning and "metric_path" not in best["autotuning"]
    results = folder / "autotuning_results"
    record = json.loads((results / "z0_gas1_tmbspg1" / "metrics.json").read_text())
    assert record["steps"] == 2 and record["ranks"] == 2 and record["stage"] == 0 and record["memory_bytes"] > 1 << 20
    assert record["throughput"] == pytest.approx(2 / record["latency"], rel=1e-6)
    assert min(record["forward"], record["backward"], record["step"]) > 0
    assert "| 1 | stage 0, micro-batch 1 x 1 |" in (results / "summary.txt").read_text()
    assert json.loads((folder / "autotuning_exps" / "z0_gas1_tmbspg1.json").read_text())["num_gpus"] == 2
    # The real run came after it, and only it has saved.
    assert "step 2/2" in text.rpartition("command: ")[2]
    assert (folder / "saved").is_dir()


def test_a_prediction_says_where_to_start(folder):
    config_file(folder, train_batch_size=4, optimizer=ADAMW, zero_optimization={"stage": 0},
                autotuning={"start_profile_step": 1, "end_profile_step": 1, "tuner_num_trials": 1})
    words = ["tune", *TINY, "-n", 1, "--data", "text", "--config", "ds.json"]
    assert "trial 1: stage 0, micro-batch 1 x 4" in run(folder, *words)
    assert "trial 1: stage 0, micro-batch 4 x 1" in run(folder, words[0], "--machine", "cpu", *words[1:])


def test_a_trial_with_state_on_disk_leaves_no_file(folder):
    disk = {"device": "nvme", "nvme_path": str(folder / "disk")}
    config_file(folder, train_micro_batch_size_per_gpu=1, optimizer=ADAMW,
                zero_optimization={"stage": 1, "offload_optimizer": disk},
                autotuning={"start_profile_step": 1, "end_profile_step": 1, "max_train_micro_batch_size_per_gpu": 1})
    text = run(folder, "tune", *TINY, "-n", 1, "--data", "text", "--config", "ds.json")
    assert "optimizer on nvme" not in text and "best: stage 1" in text  # as the configuration has it
    assert list((folder / "disk").iterdir()) == []
    # A rank that is killed leaves what it had, and it is removed after it.
    config_file(folder, zero_optimization={"stage": 1, "offload_optimizer": disk},
                autotuning={"max_train_micro_batch_size_per_gpu": 1})
    (folder / "fake.py").write_text("open('disk/capstan-swap-1.bin', 'w').close()\n" + FAKE)
    assert "best: stage 1" in run(folder, "tune", "-n", 1, "--no_local_rank", "fake.py", "--deepspeed_config", "ds.json")
    assert list((folder / "disk").iterdir()) == []


# Scripts

def test_a_script_of_the_package_is_measured_and_stopped(folder):
    (folder / "script.py").write_text("""
import argparse, torch, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser = deepspeed.add_config_arguments(parser)
parser.add_argument("--steps", type=int)
args = parser.parse_args()
model = torch.nn.Linear(8, 8)
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
while True:  # it never ends by itself
    for _ in range(engine.gradient_accumulation_steps()):
        engine.backward(engine(torch.randn(engine.train_micro_batch_size_per_gpu(), 8)).square().mean())
        engine.step()
""")
    config_file(folder, train_batch_size=4, optimizer=ADAMW, zero_optimization={"stage": 0})
    text = run(folder, "launch", "--autotuning", "tune", "-n", 1, "script.py", "--deepspeed_config", "ds.json", "--steps", "1")
    assert "best: stage 0, micro-batch" in text
    assert best_config(folder)["train_batch_size"] == 4
    command = (folder / "autotuning_results" / "cmd_optimal.txt").read_text()
    assert "script.py --deepspeed_config" in command and "ds_config_optimal.json --steps 1" in command


def test_deepspeed_hands_autotuning_on(folder):
    config_file(folder, train_batch_size=2, autotuning={"max_train_micro_batch_size_per_gpu": 1})
    done = subprocess.run([PYTHON, "-c", "from deepspeed.launcher.runner import main; main()", "--autotuning", "run",
                           "--num_gpus", "1", "--no_local_rank", "fake.py", "--deepspeed_config", "ds.json"],
                          cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=TIMEOUT)
    assert "best: stage 0, micro-batch 1 x 2" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0 and done.stdout.endswith("the job itself, with 1\n"), done.stdout + done.stderr


def test_failures_hangs_and_too_little_memory_are_results(folder):
    text = tune_fake(folder, "--at-2", "hang", "--at-8", "memory", flags=["--limit", 3], tuner_type="gridsearch")
    assert "trial 2: stage 1, micro-batch 2 x 1: took too long: nothing after 3 s" in text
    assert started(folder) == [1, 2]  # what hangs with 2 is not tried with more
    assert best_config(folder)["train_micro_batch_size_per_gpu"] == 1
    (folder / "started").unlink()
    text = tune_fake(folder, "--at-2", "fail", "--at-8", "memory", tuner_type="gridsearch")
    assert "micro-batch 2 x 1: failed: rank 0 exited with code 1: no such data set" in text
    assert "micro-batch 8 x 1: out of memory" in text
    assert "with micro-batch 8 x 1 instead: does not fit" in text
    assert started(folder) == [1, 2, 4, 8] and best_config(folder)["train_micro_batch_size_per_gpu"] == 4


def test_where_nothing_works_it_says_so(folder):
    text = tune_fake(folder, *sum((["--at-" + str(m), "fail"] for m in (1, 2, 4, 8)), []), tuner_type="gridsearch", code=1)
    assert "no configuration has worked" in text and "3 trials have failed" in text
    assert not (folder / "autotuning_results" / "ds_config_optimal.json").exists()


def test_ctrl_c_answers_and_the_next_call_goes_on(folder):
    config_file(folder, autotuning={"max_train_micro_batch_size_per_gpu": 4})
    words = ["tune", "-n", 1, "--no_local_rank", "fake.py", "--deepspeed_config", "ds.json", "--at-4", "hang"]
    process = start(folder, *words)
    deadline = time.monotonic() + TIMEOUT
    while not ((folder / "started").exists() and 4 in started(folder)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130 and left_of(folder) == []
    assert "best: stage 0, micro-batch 2 x 1" in out and "it was stopped" in out, out + err
    assert best_config(folder)["train_micro_batch_size_per_gpu"] == 2
    (folder / "started").unlink()
    text = run(folder, "tune", "--limit", 3, *words[1:])
    assert started(folder) == [4] and text.count("(from before)") == 2
    (folder / "started").unlink()
    run(folder, "tune", "--overwrite", "--limit", 3, *words[1:])
    assert started(folder) == [1, 2, 4]


def test_flags_of_the_script_follow(folder):
    (folder / "fake.py").write_text(FAKE.replace('micro = config["train_micro_batch_size_per_gpu"]',
                                                 'micro = int(sys.argv[sys.argv.index("--batch") + 1])'))
    mapping = {"train_micro_batch_size_per_gpu": "--batch"}
    tune_fake(folder, "--batch", 1, tuner_type="gridsearch", arg_mappings=mapping)
    assert started(folder) == [1, 2, 4, 8]
    (folder / "started").unlink()
    text = tune_fake(folder, "--batch", 1, tuner_type="gridsearch")
    assert "trained with train_micro_batch_size_per_gpu 1 instead of 2" in text


def test_a_dry_run_starts_nothing_and_a_quiet_one_tells_only_the_answer(folder):
    text = tune_fake(folder, flags=["--dry-run"])
    assert "z1_gas1_tmbspg1" in text and "fake.py" in text and not (folder / "started").exists()
    assert not (folder / "autotuning_results").exists()
    assert tune_fake(folder, flags=["--quiet", "--trials", "1"]).lstrip().startswith("best: stage 1, micro-batch 1 x 1")


def test_mistakes_are_explained(folder):
    config_file(folder, train_batch_size=[2, 4])
    (folder / "other.json").write_text("{}")
    cases = [(["tune"], "nothing to tune"), (["tune", "fake.py"], "name no configuration"),
             (["tune", "fake.py", "--deepspeed_config", "ds.json"], "train_batch_size is a list"),
             (["tune", "--config", "other.json", "fake.py", "--x", "ds.json"], "do not have this configuration"),
             (["tune", "train", "--model", "gpt5"], "gpt5"), (["tune", "train", "--nonsense"], "capstan train --help"),
             (["tune", "--machine", "cpu", "fake.py", "--config", "other.json"], "nothing can be predicted"),
             (["tune", "--trials", "0", "fake.py"], "--trials is 0")]
    for words, expected in cases:
        text = run(folder, *words, code=2)
        assert expected in text and "fix:" in text, text
    config_file(folder, autotuning={"results_dir": "fake.py"})
    assert "cannot make the folder" in run(folder, "tune", "-n", 1, "fake.py", "--deepspeed_config", "ds.json", code=2)
