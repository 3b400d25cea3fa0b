"""The run page: `capstan page`, `capstan train --page`, and what a browser shows of it."""

import html
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
TINY = ["--model", "gpt2-nano", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--vocab", "256",
        "--eval-batches", "1", "--sample-tokens", "0", "--device", "cpu"]


def run(*words, check=True):
    done = subprocess.run([CAPSTAN, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def step_line(step, **more):
    return {"step": step, "loss": 5 - step / 10, "lr": 0.001, "loss_scale": 1, "grad_norm": 0.5, "skipped": step == 3,
            "samples_per_s": 10.5, "memory_bytes": {"device": 1000 * step, "host": 5000}, "samples": 8 * step,
            "time": 1000.0 + step, **more}


def write(path, lines, tail=""):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return path


def data_of(page):
    """What the page draws, read without a browser."""
    text = re.search(r"runPageData\((.*)\);</script>", Path(page).read_text())[1]
    assert "<" not in text
    return json.loads(text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    done = run("train", "-n", 2, "--data", folder / "text.txt", "--max-steps", 12, "--eval-every", 5, "--page", folder / "run", *TINY)
    return folder / "run", done


def test_a_run_leaves_one_page_with_everything_its_metrics_file_says(trained):
    folder, done = trained
    assert f"run page: {folder}/index.html" in done.stdout and done.stderr == ""
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "metrics.jsonl"]
    about, *lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    shown, = data_of(folder / "index.html")["runs"]
    columns = shown["columns"]
    assert columns["step"] == list(range(1, 13)) and shown["name"] == "run" and shown["damage"] == ""
    for name in ("loss", "lr", "grad_norm", "tokens_per_s", "samples", "time"):
        assert columns[name] == [line[name] for line in steps], name
    assert columns["memory_bytes.host"] == [line["memory_bytes"]["host"] for line in steps]
    assert columns["held_bytes.optimizer"] == [line["held_bytes"]["optimizer"] for line in steps] and min(columns["held_bytes.optimizer"]) > 0
    validations = [line for line in lines if "validation_loss" in line]
    assert shown["validation"] == {"step": [5, 10, 12], "loss": [line["validation_loss"] for line in validations]}
    config = {key: (value, origin) for key, value, origin, _ in about["run"]["config"]}
    assert config["zero_optimization.stage"][0] == "3" and config["capstan.metrics"][1] == "derived: --page"
    assert shown["run"]["facts"]["steps"] == "12" and shown["run"]["environment"]["host"]
    page = (folder / "index.html").read_text()
    assert not re.search(r"(src|href)\s*=|@import|url\(|fetch\(|https?://(?!www\.w3\.org/2000/svg)", page.split("<script>")[0])


def test_several_runs_long_ones_and_odd_names(tmp_path):
    first = write(tmp_path / "a<b>.jsonl", [step_line(step, loss=9.0 if step == 4321 else 1.0) for step in range(1, 10001)])
    second = write(tmp_path / "b.jsonl", [step_line(1), step_line(2, loss=None), step_line(3)])
    done = run("page", first, second, "-o", tmp_path / "both.html")
    assert done.stdout == f"run page: {tmp_path}/both.html\n" and done.stderr == ""
    long, short = data_of(tmp_path / "both.html")["runs"]
    assert long["name"] == "a<b>" and short["columns"]["loss"] == [4.9, None, 4.7] and short["skipped"] == [3]
    steps, losses = long["columns"]["step"], long["columns"]["loss"]
    assert long["steps"] == 10000 and len(steps) <= 2001 and steps[0] == 1 and steps[-1] == 10000 and steps == sorted(set(steps))
    assert losses[steps.index(4321)] == 9.0  # no spike is lost


def test_a_cut_file_is_drawn_and_said(tmp_path):
    file = write(tmp_path / "m.jsonl", [step_line(1), step_line(2)], tail='{"step":3,"lo')
    done = run("page", file)
    assert done.stderr == f"warning: {file}: 1 line is no complete step and is left out; the first is line 3\n"
    shown, = data_of(tmp_path / "m.html")["runs"]
    assert shown["columns"]["step"] == [1, 2] and "line 3" in shown["damage"]


@pytest.mark.parametrize("name, text, what", [
    ("other.csv", "step,loss\n1,2\n", "this is not a metrics file"), ("empty.jsonl", "", "there is no step in this file"),
    ("list.json", "[1, 2]\n", "this is not a metrics file"), (None, None, "cannot read the metrics"),
    ("folder", None, "there is no metrics.jsonl in this folder")])
def test_what_is_no_metrics_file_is_named_with_what_to_do(tmp_path, name, text, what):
    file = tmp_path / (name or "missing")
    if name == "folder":
        file.mkdir()
    elif name is not None:
        file.write_text(text)
    done = run("page", file, check=False)
    assert done.returncode == 2 and what in done.stderr and str(file) in done.stderr and "fix:" in done.stderr, done.stderr
    assert not list(tmp_path.rglob("*.html"))


def test_it_follows_a_run_and_becomes_one_file_at_the_end(tmp_path):
    file = write(tmp_path / "m.jsonl", [step_line(1)])
    page, script = tmp_path / "m.html", tmp_path / "m.data.js"
    following = subprocess.Popen([CAPSTAN, "page", "--follow", file], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.time() + 120
        while not page.exists() and time.time() < deadline:
            time.sleep(0.05)
        assert data_of(page)["live"] is True
        with open(file, "a") as more:
            more.write(json.dumps(step_line(2)) + "\n")
        while '"step":[1,2]' not in script.read_text() and time.time() < deadline:
            time.sleep(0.05)
        assert script.read_text().startswith('runPageData({"live":true')
        following.send_signal(signal.SIGINT)
        assert following.wait(120) == 0
    finally:
        following.kill()
    assert not script.exists() and data_of(page)["live"] is False and data_of(page)["runs"][0]["columns"]["step"] == [1, 2]


def test_training_goes_on_when_the_folder_of_its_page_is_deleted(tmp_path):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    said = tmp_path / "said.txt"
    with open(said, "w") as err:
        training = subprocess.Popen([CAPSTAN, "train", "-n", "1", "--data", tmp_path / "text.txt", "--max-steps", "1000000", "--log-every", "1",
                                     "--eval-every", "0", "--page", tmp_path / "run", *TINY], stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        deadline = time.time() + 120
        while not (tmp_path / "run" / "index.html").exists() and time.time() < deadline:
            time.sleep(0.02)
        (tmp_path / "run").rename(tmp_path / "gone")
        while "the metrics file is left out" not in said.read_text() and time.time() < deadline:
            time.sleep(0.05)
        for line in range(50):  # it goes on
            training.stdout.readline()
        training.send_signal(signal.SIGINT)
        out, _ = training.communicate(timeout=120)
    finally:
        training.kill()
    assert training.returncode == 130 and "stopped after step" in out
    assert said.read_text().count("the metrics file is left out from here on, training continues") == 1, said.read_text()


# In a browser

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs the package chromium")


def browse(page, folder, *words):
    """(the page as it stands after its scripts ran, what the console said)"""
    done = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
                           f"--user-data-dir={folder}", "--virtual-time-budget=3000", "--dump-dom", *words, Path(page).as_uri()],
                          capture_output=True, text=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def figures_in(dom):
    """{figure: exact value} of the tiles."""
    return {name: html.unescape(value) for name, value in re.findall(r'class="tile" data-figure="([^"]*)" data-value="([^"]*)"', dom)}


@needs_browser
def test_the_check_for_console_errors_sees_one(tmp_path):
    (tmp_path / "broken.html").write_text("<script>nothing.here()</script>")
    assert "ReferenceError" in browse(tmp_path / "broken.html", tmp_path / "profile")[1][0]


@needs_browser
def test_a_browser_shows_the_figures_of_the_metrics_file_without_an_error(trained, tmp_path):
    folder, _ = trained
    dom, console = browse(folder / "index.html", tmp_path / "profile")
    assert console == []
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    tiles = figures_in(dom)
    for name in ("step", "loss", "lr", "grad_norm", "tokens_per_s"):
        assert float(tiles[name]) == steps[-1][name], name
    assert float(tiles["memory_bytes.host"]) == steps[-1]["memory_bytes"]["host"]
    assert float(tiles["validation_loss"]) == lines[-1]["validation_loss"]
    table = re.search(r'<details id="figures-0".*?</details>', dom, re.S)[0]
    heads = re.findall(r"<th>(.*?)</th>", table)
    rows = [dict(zip(heads, re.findall(r"<td[^>]*>(.*?)</td>", row))) for row in re.findall(r"<tr>(<td.*?)</tr>", table)]
    assert [float(row["loss"]) for row in rows] == [line["loss"] for line in steps]
    assert [float(row["memory_bytes.device"]) for row in rows] == [line["memory_bytes"]["device"] for line in steps]
    assert all(f'id="chart-{name}"><header>' in dom for name in ("loss", "lr", "grad_norm", "speed", "memory", "skipped"))
    assert 'data-path="zero_optimization.stage"' in dom and "parameters; " not in dom


@needs_browser
def test_a_browser_overlays_runs_and_follows_one_that_goes_on(tmp_path):
    first = write(tmp_path / "first.jsonl", [step_line(step) for step in range(1, 20)])
    second = write(tmp_path / "second.jsonl", [step_line(step, loss=3.0) for step in range(1, 20)], tail="{")
    run("page", first, second, "-o", tmp_path / "both.html")
    dom, console = browse(tmp_path / "both.html", tmp_path / "profile")
    assert console == [] and re.findall(r'<tr data-run="(.*?)"', dom) == ["first", "second"] and "1 line is no complete step" in dom
    # As a run leaves it that still goes on: the page is older than the script beside it.
    page = (tmp_path / "both.html").read_text().replace('runPageData({"live":false', 'runPageData({"live":true')
    (tmp_path / "both.html").write_text(page)
    newer = {**data_of(tmp_path / "both.html"), "live": False}
    newer["runs"][0]["columns"]["loss"][-1] = 0.125
    (tmp_path / "both.data.js").write_text(f"runPageData({json.dumps(newer)});")
    dom, console = browse(tmp_path / "both.html", tmp_path / "profile")
    assert console == [] and 'data-figure="loss" data-value="0.125"' in dom


TRY_EVERYTHING = """<script>
const press = () => [...document.querySelectorAll("button")].map((_, i) => document.querySelectorAll("button")[i]?.click());
press(); press();
for (const axis of ["time", "samples", "step"]) {
  document.getElementById("axis").value = axis;
  document.getElementById("axis").dispatchEvent(new Event("change"));
}
for (const weight of [90, 0]) {
  document.getElementById("smoothing").value = weight;
  document.getElementById("smoothing").dispatchEvent(new Event("input"));
}
const frame = document.querySelector("#chart-grad_norm svg").getBoundingClientRect();
document.getElementById("chart-grad_norm").dispatchEvent(
  new PointerEvent("pointermove", { clientX: frame.right - 13, clientY: frame.top + 50, bubbles: true }));
</script>"""


@needs_browser
def test_switches_slider_axes_and_hover_work_without_an_error(trained, tmp_path):
    folder, _ = trained
    page = tmp_path / "page.html"
    page.write_text((folder / "index.html").read_text() + TRY_EVERYTHING)
    dom, console = browse(page, tmp_path / "profile")
    assert console == []
    last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if "grad_norm" in line][-1]
    hover = re.search(r'<div class="hover".*?</b></div></div>', dom, re.S)[0]
    assert "step 12" in hover and float(re.search(r"<b>(.*?)</b>", hover)[1]) == pytest.approx(last["grad_norm"], rel=1e-4)
    assert dom.count('aria-pressed="true"') > 0 and dom.count("<path") >= 6
