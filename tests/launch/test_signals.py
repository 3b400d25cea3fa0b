"""Signals to the launcher at any time, and what ranks are told when one of them has failed."""

import os
import shutil
import signal

import pytest

from launching import PYTHON, Job, clean_environment, launch, shell

# Longer than a test may take: whoever waits the grace out fails.
ENDLESS = ["--grace", 600]
STOPS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


def ignoring(number):
    return {"preexec_fn": lambda: signal.signal(number, signal.SIG_IGN)}


@pytest.mark.parametrize("launcher", ["local", "ssh", "mpi"])
def test_ranks_learn_at_once_that_another_has_failed(launcher, tmp_path):
    """A rank that saves on SIGTERM cannot do so alone: SIGURG tells it that nobody is left to wait for."""
    if launcher == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun on this machine")
    told = "trap 'echo told; exit 0' URG; trap '' TERM; touch ready; while :; do sleep 0.1; done"
    fails = "while [ ! -e ready ]; do sleep 0.1; done; kill -9 $$"
    job = launch("-n", 2, "--launcher", launcher, *ENDLESS, "--no_python", "/bin/sh", "-c",
                 f"[ $RANK = 0 ] && {{ {told}; }}; {fails}", cwd=tmp_path)
    assert job.code == 128 + signal.SIGKILL and "[rank 0] told" in job.out, job.err


def test_what_is_to_be_ignored_stays_ignored():
    """As under nohup: the hangup is not heard, and what comes after it is."""
    script = "trap 'echo asked; exit 0' USR1; echo ready; while :; do sleep 0.1; done"
    job = Job("-n", 2, "--launcher", "local", "--no_python", "/bin/sh", "-c", script, **ignoring(signal.SIGHUP))
    try:
        ready = b""
        while ready.count(b"ready") < 2:
            ready += os.read(job.process.stdout.fileno(), 1000)
        job.process.send_signal(signal.SIGHUP)
        job.process.send_signal(signal.SIGUSR1)
        job.finish()
        assert job.code == 0 and job.out.count("asked") == 2, job.err
    finally:
        job.kill_rest()


def test_exit_codes_arrive_where_the_parent_ignores_its_children():
    assert shell("exit 3", **ignoring(signal.SIGCHLD)).code == 3


@pytest.mark.parametrize("number", STOPS, ids=lambda n: n.name)
@pytest.mark.parametrize("carrier, launcher", [("ssh", "ssh"), ("mpirun", "mpi")])
def test_a_signal_before_any_rank_exists(carrier, launcher, number, tmp_path):
    """The carrier is there and has brought no agent yet."""
    (tmp_path / carrier).write_text("#!/bin/sh\necho busy >&2\nsleep 600 &\nwait\n")
    (tmp_path / carrier).chmod(0o755)
    (tmp_path / "hosts").write_text("far-1 slots=1\nfar-2 slots=1\n")
    job = Job("--hostfile", tmp_path / "hosts", "--launcher", launcher, *ENDLESS, "--no_python", "true",
              env=clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    try:
        said = b""
        while said.count(b"busy") < (2 if launcher == "ssh" else 1):
            said += os.read(job.process.stderr.fileno(), 1000)
        job.process.send_signal(number)
        job.finish()
        assert job.code == 128 + number
        assert ("Ctrl-C" if number == signal.SIGINT else number.name) in job.err, job.err
        assert not job.processes()
    finally:
        job.kill_rest()


@pytest.mark.parametrize("number", STOPS, ids=lambda n: n.name)
def test_a_signal_while_ranks_look_for_each_other(number, tmp_path):
    """Rank 0 waits inside TCPStore, where Python hears nothing, for a rank that does not come."""
    script = tmp_path / "meet.py"
    script.write_text(
        "import datetime, os, time\nfrom torch.distributed import TCPStore\n"
        "if os.environ['RANK'] == '1':\n    print('looking', flush=True)\n    time.sleep(600)\n"
        "print('looking', flush=True)\n"
        "TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), 2, True, datetime.timedelta(seconds=600))\n")
    job = Job("-n", 2, "--launcher", "local", "--grace", 4, script, env=clean_environment(CAPSTAN_PYTHON=PYTHON))
    try:
        seen = b""
        while seen.count(b"looking") < 2:
            seen += os.read(job.process.stdout.fileno(), 1000)
        job.process.send_signal(number)
        job.finish()
        assert job.code == 128 + number and "all ranks have ended" in job.err, job.err
        assert not job.processes()
    finally:
        job.kill_rest()


def test_a_signal_as_the_first_thing_that_happens():
    """Whenever it comes, nothing is left behind and the code says which it was."""
    for number in STOPS * 10:
        job = Job("-n", 4, "--launcher", "local", *ENDLESS, "--no_python", "sleep", 600)
        try:
            job.process.send_signal(number)
            job.finish()
            assert job.code in (128 + number, -number), job.err
            assert job.wait_until_gone(), job.processes()
        finally:
            job.kill_rest()
