"""capstan train --trace and --profile, as a user runs them."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

BIN = Path(os.environ["CAPSTAN_BIN"])
TINY = ["--model", "gpt2-tiny", "--layers", "4", "--tokens", "64", "--log-every", "1", "--eval-batches", "2", "--sample-tokens", "0",
        "--device", "cpu"]
TIMEOUT = 240  # seconds; a run takes a few on an idle machine


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "numbers.txt"
    path.write_text("".join(f"The number {i} is followed by the number {i + 1}.\n" for i in range(2000)))
    return path


def capstan(*words, check=True):
    done = subprocess.run([BIN / "capstan", *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def config(stage=3, micro_batches=2, **more):
    return json.dumps({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": micro_batches,
                       "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
                       "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **more})


def train(text, *words, ranks=2, **how):
    return capstan("train", "-n", ranks, "--config", config(**how), "--data", text, *TINY, *words)


def spans_of(folder):
    """(complete events, names of rows) of a trace, once it is known to be one."""
    trace = json.loads((folder / "trace.json").read_text())
    spans, rows, ends = [], {}, {}
    for event in trace["traceEvents"]:
        assert event["ph"] in "XM" and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            row = event["pid"], event["tid"]
            assert event["ts"] >= ends.get(row, 0) and event["dur"] >= 0  # nothing overlaps in a row
            ends[row] = round(event["ts"] + event["dur"], 3) - 0.002
            spans.append(event)
        elif event["name"] == "thread_name":
            rows[event["pid"], event["tid"]] = event["args"]["name"]
    assert set(ends) <= set(rows) and min(span["ts"] for span in spans) == 0
    return spans, rows


def test_a_timeline_has_what_each_rank_did_and_the_losses_stay_the_same(text, tmp_path):
    metrics, folder = [tmp_path / "plain.jsonl", tmp_path / "traced.jsonl"], tmp_path / "made" / "for it"
    train(text, "--max-steps", 4, "--metrics", metrics[0])
    done = train(text, "--max-steps", 4, "--metrics", metrics[1], "--trace", folder, "--trace-steps", "2:3")
    plain, traced = ([json.loads(line).get("loss") for line in path.read_text().splitlines()] for path in metrics)
    assert plain == traced
    assert f"timeline of steps 2 to 3: {folder}/timeline.html" in done.stdout
    assert len(re.findall(r"rank [01]: exposed: .*; computing [\d.]+ %, other [\d.]+ %", done.stdout)) == 2
    spans, _ = spans_of(folder)
    for rank in (0, 1):
        own = [span for span in spans if span["pid"] == rank]
        assert {"phase", "compute", "gather", "reduce", "update", "wait"} <= {span["cat"] for span in own}
        steps = [span for span in own if span["cat"] == "phase" and span["name"] == "step"]
        assert len(steps) == 2
        blocks = [span for span in own if span["cat"] == "compute" and span["args"].get("unit") == "transformer.h.1"]
        assert sorted(span["name"] for span in blocks) == ["backward"] * 4 + ["forward"] * 4  # two micro-batches, two steps
        gathers = [span for span in own if span["cat"] == "gather" and span["args"].get("unit") == "transformer.h.1"]
        assert gathers and all(span["args"]["bytes"] > 0 for span in gathers)
    page = (folder / "timeline.html").read_text()
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.S)[1])
    assert [rank["name"] for rank in data["ranks"]] == ["rank 0", "rank 1"]
    assert sum(len(rank["spans"]) for rank in data["ranks"]) == len(spans)
    assert [step[0] for step in data["ranks"][0]["steps"]] == [2, 3] and "http" not in page
    # One gather ends on both ranks at about the same time, by whichever clock.
    overlap = [max(a["ts"], b["ts"]) < min(a["ts"] + a["dur"], b["ts"] + b["dur"]) for a, b in zip(
        *([span for span in spans if span["pid"] == rank and span["cat"] == "gather"] for rank in (0, 1)))]
    assert any(overlap)


def test_a_pipeline_shows_its_stages_and_what_they_send(text, tmp_path):
    train(text, "--pipe", 2, "--max-steps", 2, "--trace", tmp_path, "--trace-steps", "1:2", stage=1, micro_batches=4)
    spans, rows = spans_of(tmp_path)
    exchanged = {(span["pid"], span["name"]) for span in spans if span["cat"] == "exchange"}
    assert {(0, "send"), (1, "send"), (0, "recv"), (1, "recv")} <= exchanged
    units = [{span["args"].get("unit") for span in spans if span["pid"] == rank and span["cat"] == "compute"} for rank in (0, 1)]
    assert "transformer.wpe" in units[0] - units[1] and "transformer.ln_f" in units[1] - units[0]
    assert '"name": "rank 1, stage 1"' in (tmp_path / "trace.json").read_text()


def test_the_configuration_can_ask_for_the_timeline_of_one_rank(text, tmp_path):
    train(text, "--max-steps", 1, ranks=1, stage=0, micro_batches=1, capstan={"trace": {"folder": str(tmp_path), "steps": [1, 1]}})
    spans, _ = spans_of(tmp_path)
    assert {span["cat"] for span in spans} >= {"phase", "compute", "update"}


@pytest.mark.parametrize("words, message", [
    (["--trace-steps", "2:3"], "add --trace DIR"),
    (["--trace", "x", "--trace-steps", "3:2"], "not a first and a last step"),
    (["--trace", "x", "--trace-steps", "a:b"], "not a first and a last step"),
    (["--trace", "x", "--trace-steps", "1:2:3"], "not a first and a last step"),
    (["--trace", "x", "--trace-steps", "3:5"], "the run ends after step 4"),
    (["--trace", "/dev/null/x", "--trace-steps", "1"], "the folder for the timeline cannot be made"),
    (["--profile", "4"], "the run ends after step 4"),
    (["--profile", "--tensor", "2"], "layers that ranks share cannot be profiled yet")])
def test_what_cannot_be_measured_is_refused(text, words, message):
    done = capstan("train", "-n", 2, "--config", config(stage=0), "--data", text, "--max-steps", 4, *TINY, *words, check=False)
    assert done.returncode == 2 and message in done.stdout + done.stderr


def test_a_timeline_that_cannot_be_written_does_not_end_the_run(text, tmp_path):
    (tmp_path / "timeline.html").mkdir()
    done = train(text, "--max-steps", 2, "--trace", tmp_path, "--trace-steps", "1:1")
    assert "the timeline was not written: Is a directory" in done.stdout + done.stderr


def figures(report):
    """module -> the columns of its line."""
    lines = report.split("Every module:\n")[1].splitlines()[1:]
    return {re.split(r"  +", line.strip())[0]: re.split(r"  +", line.strip())[1:] for line in lines if re.match(r" *[\w.]+(: \w+)? ", line)}


def test_a_profile_counts_modules_by_arithmetic_and_times_them_by_the_engine(text, tmp_path):
    done = train(text, "--max-steps", 3, "--profile", "--metrics", tmp_path / "metrics.jsonl")
    assert done.stdout.count("Profile Summary at step 1:") == 1
    lines = figures(done.stdout)
    tokens, width = 2 * 64, 64
    block = lines["h.0: Block"]
    assert block[2] == f"{(2 * tokens * 12 * width**2 + 4 * tokens * 64 * width) / 1e6:.4g} M"
    assert float(block[5]) > 0 and float(block[6]) > 0  # ms of forward and backward
    assert lines["c_attn: Projection"][5] == "-"  # inside of a unit: no time of its own
    losses = [json.loads(line).get("loss") for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    train(text, "--max-steps", 3, "--metrics", tmp_path / "plain.jsonl")
    assert losses == [json.loads(line).get("loss") for line in (tmp_path / "plain.jsonl").read_text().splitlines()]


def test_recomputation_is_told_apart_and_the_report_goes_to_the_file_of_the_configuration(text, tmp_path):
    report = tmp_path / "profile.txt"
    section = {"enabled": True, "profile_step": 0, "output_file": str(report), "module_depth": 2, "top_modules": 2}
    done = train(text, "--max-steps", 1, ranks=1, micro_batches=1, flops_profiler=section, capstan={"recompute": True})
    assert "Profile Summary" not in done.stdout
    lines = figures(report.read_text())
    assert lines["h.0: Block"][4] == lines["h.0: Block"][2] and lines["wte: EmbeddingTable"][4] == "0"
    assert "ln_1: LayerNorm" not in lines and "depth 2:" in report.read_text() and "depth 3:" not in report.read_text()
