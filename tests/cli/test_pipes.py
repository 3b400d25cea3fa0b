"""Files that can be read only once: `--config <(...)`, /dev/stdin, a FIFO."""

import json
import os
import subprocess
from pathlib import Path

import pytest

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
TIMEOUT = 240
CONFIG = json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3},
                     "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
TINY = "--device cpu --model gpt2-tiny --tokens 64 --max-steps 3 --eval-batches 1 --sample-tokens 0 --vocab 256"


def bash(line, folder, stdin=None, code=0):
    done = subprocess.run(["bash", "-c", line], input=stdin, capture_output=True, text=True, timeout=TIMEOUT, cwd=folder,
                          env={**os.environ, "CAPSTAN": str(CAPSTAN)})
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ds.json").write_text(CONFIG)
    (tmp_path / "bad.json").write_text('{\n  "optimizer": {"type": "AdmaW"}\n}')
    (tmp_path / "text.txt").write_text("".join(f"The number {i} comes before {i + 1}.\n" for i in range(400)))
    return tmp_path


def test_a_configuration_is_checked_from_a_pipe(folder):
    for line in ("$CAPSTAN config check <(cat ds.json)", "cat ds.json | $CAPSTAN config explain /dev/stdin"):
        bash(line, folder)
    os.mkfifo(folder / "fifo")
    bash("cat ds.json > fifo & $CAPSTAN config check fifo", folder)
    wrong = bash("$CAPSTAN config check <(cat bad.json)", folder, code=2).stderr
    assert ":2:" in wrong and "AdmaW" in wrong  # the place in it is told
    assert "this is a folder" in bash("$CAPSTAN config check .", folder, code=2).stderr
    assert "more than 64 MiB" in bash("$CAPSTAN config check /dev/zero", folder, code=2).stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_reads_its_files_from_pipes(folder, ranks):
    line = f"$CAPSTAN train -n {ranks} {TINY} --metrics"
    bash(f"{line} plain --config ds.json --data text.txt", folder)
    bash(f"{line} piped --config <(cat ds.json) --data=<(cat text.txt)", folder)
    bash(f"{line} stdin --data text.txt --config /dev/stdin", folder, stdin=CONFIG)

    def losses(name):
        lines = [json.loads(each) for each in (folder / name).read_text().splitlines()]
        return [each["loss"] for each in lines if "loss" in each]

    assert losses("piped") == losses("plain") == losses("stdin") and len(losses("plain")) == 3
    refused = bash(f"{line} none --config <(cat bad.json) --data text.txt", folder, code=2).stderr
    assert refused.count("AdmaW") == 1 and "/dev/fd/" in refused and "/proc/" not in refused
    refused = bash(f"{line} none --config ds.json --data <(true)", folder, code=2).stderr
    assert "there is no text" in refused and "/dev/fd/" in refused and "/proc/" not in refused


def test_text_is_made_from_prompts_in_a_pipe(folder):
    bash(f"$CAPSTAN train -n 1 {TINY} --config ds.json --data text.txt --save model", folder)
    line = "$CAPSTAN generate model --max-new-tokens 3 -n"
    expected = bash(f"{line} 1 'The number'", folder).stdout
    for ranks in (1, 2):
        assert bash(f"{line} {ranks} --prompts <(echo The number) --config <(cat ds.json)", folder).stdout == expected
        assert bash(f"{line} {ranks}", folder, stdin="The number\n").stdout == expected
        assert bash(f"echo The number > prompts; {line} {ranks} < prompts", folder).stdout == expected
