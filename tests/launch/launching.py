"""Runs `capstan launch` and finds every process that it leaves behind."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
import uuid
from pathlib import Path

BIN = Path(os.environ["CAPSTAN_BIN"])
PYTHON = os.environ["CAPSTAN_PYTHON"]
CAPSTAN = str(BIN / "capstan")
TIMEOUT = 120  # seconds; far above what anything here takes, even on a loaded machine

# Variables that would make a program believe it runs inside another job.
OUTER = ("OMPI_", "PMI", "SLURM", "TORCHELASTIC", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "OMP_NUM")


def clean_environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(OUTER)}
    return {**env, "CUDA_VISIBLE_DEVICES": "", **{k: str(v) for k, v in more.items()}}


def default_signals():
    """In a child before it starts: what our caller ignores (under nohup, or as a job in the background) acts again."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Job:
    """One `capstan launch`, marked so that its processes can be found wherever they went."""

    def __init__(self, *args, env=None, cwd=None, stdin=subprocess.DEVNULL, command=None, **popen):
        self.mark = uuid.uuid4().hex
        env = {**(env or clean_environment()), "CAPSTAN_TEST_MARK": self.mark}
        self.process = subprocess.Popen(command or [CAPSTAN, "launch", *map(str, args)], env=env, cwd=cwd, stdin=stdin,
                                        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                                           "preexec_fn": default_signals, **popen})

    def finish(self, timeout=TIMEOUT):
        out, err = self.process.communicate(timeout=timeout)
        self.code = self.process.returncode
        self.out = (out or b"").decode(errors="replace")
        self.err = (err or b"").decode(errors="replace")
        return self

    def processes(self):
        """{pid: command line} of the living processes of this job, the launcher itself left out."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.process.pid:
                continue
            try:
                marked = self.mark.encode() in (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if marked and state != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it ended while we looked
        return found

    def wait_until_gone(self, timeout=30):
        return wait_for(lambda: not self.processes(), timeout)

    def kill_rest(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.wait()


def wait_for(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    return condition()


def launch(*args, **options):
    """Runs to the end and insists that nothing is left behind."""
    job = Job(*args, **options)
    try:
        job.finish()
        # An agent on another host ends right after it has reported its ranks' end.
        job.wait_until_gone(timeout=5)
        left = job.processes()
        assert not left, f"left behind: {left}\n{job.err}"
    finally:
        job.kill_rest()
    return job


def shell(script, *flags, n=1, launcher="local", **options):
    return launch("-n", n, "--launcher", launcher, "--grace", 2, *flags, "--no_python", "/bin/sh", "-c", script, **options)


def rank_lines(text):
    """{rank: [lines]} of prefixed output; every line must have the prefix."""
    lines = {}
    for line in text.split("\n"):
        if not line:
            continue
        assert line.startswith("[rank "), line
        head, rest = line[len("[rank "):].split("] ", 1) if "] " in line else (line[6:-1], "")
        lines.setdefault(int(head), []).append(rest)
    return lines


def parse_facts(text):
    """[{name: value}] of rank_env_print's lines, by rank."""
    facts = []
    for line in text.splitlines():
        if "rank=" in line and "launcher=" in line:
            facts.append(dict(word.split("=", 1) for word in line[line.index("rank="):].split(" ")))
    return sorted(facts, key=lambda f: int(f["rank"]))


class Terminal:
    """A pseudo-terminal with `capstan launch` as its foreground program, as a person would run it."""

    def __init__(self, *args):
        self.master, slave = pty.openpty()
        self.job = Job(*args, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=self.take)
        os.close(slave)
        self.text = b""

    @staticmethod
    def take():
        default_signals()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def read_until(self, wanted):
        while self.text.count(wanted[0]) < wanted[1]:
            self.text += os.read(self.master, 4096)

    def press_ctrl_c(self):
        os.write(self.master, b"\x03")

    def close(self):
        try:
            while chunk := os.read(self.master, 4096):
                self.text += chunk
        except OSError:
            pass  # the other end is closed
        self.job.process.wait(60)
        os.close(self.master)
