"""capstan launch on this machine: output, failures, stopping, leftovers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launching import (BIN, CAPSTAN, PYTHON, Job, Terminal, clean_environment, launch, parse_facts, rank_lines, shell, wait_for)


def test_ranks_learn_who_they_are():
    job = launch("-n", 3, "--launcher", "local", "--no_python", BIN / "rank_env_print")
    assert job.code == 0, job.err
    facts = parse_facts(job.out)
    assert [f["rank"] for f in facts] == ["0", "1", "2"]
    assert all(f["launcher"] == "capstan" and f["world_size"] == "3" and f["node_count"] == "1" for f in facts)
    assert len({f["master_port"] for f in facts}) == 1 and facts[0]["master_port"] != "0"


def test_a_python_script_gets_local_rank_and_its_own_arguments(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys, os; print(sys.argv[1:], os.environ['LOCAL_RANK'])\n")
    env = clean_environment(CAPSTAN_PYTHON=PYTHON)
    job = launch("-n", 2, script, "--lr", "0.1", "-n", "x y", env=env)
    assert rank_lines(job.out)[1] == ["['--local_rank=1', '--lr', '0.1', '-n', 'x y'] 1"]
    job = launch("-n", 1, "--no_local_rank", script, "--deepspeed", env=env)
    assert rank_lines(job.out)[0] == ["['--deepspeed'] 0"]
    job = launch("-n", 1, "--module", "train", env=env, cwd=tmp_path)
    assert rank_lines(job.out)[0] == ["['--local_rank=0'] 0"]


def test_output_and_errors_keep_their_streams():
    job = shell("echo to out; echo to err >&2")
    assert (job.code, job.out, job.err) == (0, "[rank 0] to out\n", "[rank 0] to err\n")


def test_exit_code_of_the_failing_rank_and_its_error_last(tmp_path):
    last = "capstan: rank 1 exited with code 3; the other ranks were stopped\n"
    job = shell("if [ $RANK = 1 ]; then echo my cause >&2; exit 3; fi; sleep 600", n=4)
    assert job.code == 3 and job.err == "[rank 1] my cause\n" + last  # nothing came between: told once
    talks = "trap 'echo noise >&2; exit 0' TERM; touch ready$RANK; while :; do sleep 0.1; done"
    fails = "while [ ! -e ready0 ] || [ ! -e ready2 ]; do sleep 0.1; done; echo my cause >&2; exit 3"
    job = shell(f"[ $RANK = 1 ] || {{ {talks}; }}; {fails}", n=3, cwd=tmp_path)
    assert job.code == 3 and job.err.count("noise") == 2
    assert job.err.endswith("capstan: rank 1 failed first. Its last lines:\n[rank 1] my cause\n" + last)


def test_a_killed_rank_is_named_with_its_signal():
    job = shell("[ $RANK = 2 ] && kill -9 $$; sleep 600", n=3)
    assert job.code == 128 + 9
    assert "rank 2 was killed from outside (signal 9, SIGKILL)" in job.err.splitlines()[-1]


def test_of_ranks_that_end_together_the_killed_one_is_the_cause(tmp_path):
    """Their parent stands still until both have ended, and so sees both ends at once."""
    wait = "echo $$ > pid$RANK.new; mv pid$RANK.new pid$RANK; while [ ! -e go ]; do sleep 0.1; done; exit 3"
    job = subprocess.Popen([CAPSTAN, "launch", "-n", "2", "--launcher", "local", "--no_python", "/bin/sh", "-c", wait], cwd=tmp_path,
                           env=clean_environment(), stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: (tmp_path / "pid0").exists() and (tmp_path / "pid1").exists())
        pids = [int((tmp_path / f"pid{rank}").read_text()) for rank in range(2)]

        def field(pid, number):  # of what follows the name: 0 is the state, 1 the parent
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[number]

        parent = int(field(pids[0], 1))
        os.kill(parent, signal.SIGSTOP)
        assert wait_for(lambda: field(parent, 0) == "T")
        os.kill(pids[1], signal.SIGKILL)
        (tmp_path / "go").touch()
        assert wait_for(lambda: all(field(pid, 0) == "Z" for pid in pids))
        os.kill(parent, signal.SIGCONT)
        error = job.communicate(timeout=300)[1]
    finally:
        job.kill()
    assert job.returncode == 128 + 9 and "rank 1 was killed from outside" in error.splitlines()[-1], error


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_time():
    started = time.monotonic()
    job = shell("trap '' TERM; [ $RANK = 0 ] && sleep 0.5 && exit 5; while :; do sleep 1; done", n=2)
    assert job.code == 5
    assert time.monotonic() - started >= 2  # it had its grace


def test_a_rank_may_clean_up_when_it_is_stopped():
    job = shell("if [ $RANK = 0 ]; then sleep 1; exit 4; fi; trap 'echo saved; exit 0' TERM; sleep 600 & wait", n=2)
    assert job.code == 4
    assert rank_lines(job.out)[1] == ["saved"]


def test_grandchildren_go_with_their_rank():
    # One in the rank's own group, one that left for a session of its own, and one that ignores SIGTERM.
    job = shell("sleep 600 & setsid sleep 601 & setsid sh -c 'trap \"\" TERM; sleep 602; sleep 603' & sleep 0.3; exit 6")
    assert job.code == 6
    job = shell("setsid sleep 600 & sleep 0.2; exit 0")
    assert job.code == 0
    assert "stopped 1 process that ranks had left behind" in job.err
    job = shell("setsid sleep 0.1 & exit 0")  # ends by itself, only a moment later
    assert job.code == 0 and job.err == ""


def test_killing_the_launcher_takes_everything_with_it():
    job = Job("-n", 2, "--launcher", "local", "--no_python", "/bin/sh", "-c", "sleep 600 & sleep 601")
    try:
        assert wait_for(lambda: len([p for p in job.processes().values() if "sleep" in p]) >= 4)
        job.process.kill()
        job.process.wait()
        assert job.wait_until_gone(), job.processes()
    finally:
        job.kill_rest()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_stops_the_ranks(number):
    job = Job("-n", 2, "--launcher", "local", "--grace", 5, "--no_python", "/bin/sh", "-c", "echo up; sleep 600")
    try:
        assert wait_for(lambda: sum("sleep" in p for p in job.processes().values()) >= 2)
        job.process.send_signal(number)
        job.finish()
        assert job.code == 128 + number
        assert f"stopped by {number.name}" in job.err
        assert not job.processes()
    finally:
        job.kill_rest()


def test_user_signals_reach_the_ranks():
    script = "trap 'echo asked; exit 0' USR1; echo ready; while :; do sleep 0.1; done"
    job = Job("-n", 2, "--launcher", "local", "--no_python", "/bin/sh", "-c", script)
    try:
        ready = b""
        while ready.count(b"ready") < 2:
            ready += os.read(job.process.stdout.fileno(), 1000)
        job.process.send_signal(signal.SIGUSR1)
        job.finish()
        assert job.code == 0 and job.out.count("asked") == 2
    finally:
        job.kill_rest()


def test_ctrl_c_once_stops_all_cleanly(tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import time\ntry:\n    print('up')\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('bye')\n")
    terminal = Terminal("-n", 2, "--launcher", "local", "--grace", 20, script)
    try:
        terminal.read_until((b"up", 2))
        terminal.press_ctrl_c()
        terminal.close()
        assert terminal.job.process.returncode == 130
        assert terminal.text.count(b"bye") == 2, terminal.text
        assert b"stopped by Ctrl-C" in terminal.text.splitlines()[-1]
        assert not terminal.job.processes()
    finally:
        terminal.job.kill_rest()


def test_ctrl_c_twice_does_not_wait():
    terminal = Terminal("-n", 2, "--launcher", "local", "--grace", 600, "--no_python", "/bin/sh", "-c",
                        "trap '' INT TERM; echo up; while :; do sleep 1; done")
    try:
        terminal.read_until((b"up", 2))
        terminal.press_ctrl_c()
        time.sleep(0.3)
        terminal.press_ctrl_c()
        terminal.close()
        assert terminal.job.process.returncode == 130
        assert not terminal.job.processes()
    finally:
        terminal.job.kill_rest()


# With agents between: on this machine ssh is not needed to start one.
@pytest.mark.parametrize("launcher", ["local", "ssh"])
@pytest.mark.parametrize("stream", [1, 2])
def test_progress_bars_move_on_a_terminal(launcher, stream):
    terminal = Terminal("-n", 1, "--launcher", launcher, "--grace", 2, "--no_python", "/bin/sh", "-c",
                        f"printf '10%%\\r20%%\\r' >&{stream}; read x; sleep 600")
    try:
        terminal.read_until((b"[rank 0] 10%\r", 1))
        terminal.press_ctrl_c()
        terminal.close()
        assert b"is not a message" not in terminal.text
    finally:
        terminal.job.kill_rest()


@pytest.mark.parametrize("launcher", ["local", "ssh"])
def test_without_a_terminal_a_bar_is_one_line_as_it_was_written(launcher):
    job = launch("-n", 1, "--launcher", launcher, "--no_python", "/bin/sh", "-c", "printf '10%%\\r20%%\\r\\nend\\n'")
    assert job.code == 0 and rank_lines(job.out)[0] == ["10%\r20%\r", "end"], job.out


def test_output_that_cannot_be_written_is_told_as_that():
    with open("/dev/full", "wb") as full:
        job = Job("-n", 1, "--launcher", "local", "--grace", 2, "--no_python", "/bin/sh", "-c", "echo up; sleep 600", stdout=full)
        try:
            assert job.process.wait(120) == 2
            assert b"stopped: the output cannot be written: No space left on device" in job.process.stderr.read()
        finally:
            job.kill_rest()


def test_lines_of_many_ranks_never_mix():
    script = "import os, sys\nline = os.environ['RANK'] * 3000\nfor _ in range(50): sys.stdout.write(line + '\\n')\n"
    job = launch("-n", 8, "--launcher", "local", "--no_python", sys.executable, "-uc", script)
    lines = rank_lines(job.out)
    assert job.code == 0 and len(lines) == 8
    assert all(got == [str(rank) * 3000] * 50 for rank, got in lines.items())


def test_very_long_lines_and_binary_output_arrive_whole():
    script = "import sys; sys.stdout.buffer.write(b'x' * 1000000 + b'\\n' + bytes(b for b in range(256) if b != 10))"
    job = Job("-n", 1, "--launcher", "local", "--no_python", sys.executable, "-c", script)
    out, _ = job.process.communicate(timeout=120)
    pieces = [line.removeprefix(b"[rank 0] ") for line in out.rstrip(b"\n").split(b"\n")]
    assert b"".join(pieces[:-1]) == b"x" * 1000000
    assert pieces[-1] == bytes(b for b in range(256) if b != 10)


def test_sixty_four_ranks():
    job = shell("echo $RANK", n=64)
    assert job.code == 0, job.err
    assert rank_lines(job.out) == {rank: [str(rank)] for rank in range(64)}


def test_two_jobs_at_once_never_share_a_port(tmp_path):
    script = tmp_path / "meet.py"
    script.write_text(
        "import datetime, os\nfrom torch.distributed import TCPStore\n"
        "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "store = TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), size, rank == 0,\n"
        "                 datetime.timedelta(seconds=60))\n"
        "store.set(str(rank), os.environ['JOB'])\n"
        "print('met', {store.get(str(r)).decode() for r in range(size)})\n")
    jobs = [Job("-n", 2, script, env=clean_environment(JOB=name, CAPSTAN_PYTHON=PYTHON)) for name in "ab"]
    try:
        for name, job in zip("ab", jobs):
            job.finish()
            assert job.code == 0, job.err
            assert job.out.count("met {'%s'}" % name) == 2, job.out
    finally:
        for job in jobs:
            job.kill_rest()


def test_closed_standard_files_are_no_problem():
    done = subprocess.run(["sh", "-c", f"{CAPSTAN} launch -n 2 --launcher local --no_python cat <&- 2>&- && echo fine"],
                          env=clean_environment(), capture_output=True, timeout=60)
    assert done.stdout == b"fine\n"  # cat reads the empty input of a rank
    subprocess.run(["sh", "-c", f"{CAPSTAN} launch -n 2 --launcher local --no_python echo x <&- >&- 2>&-"],
                   env=clean_environment(), check=True, timeout=60)


def test_a_reader_that_leaves_stops_the_job():
    job = Job("-n", 1, "--launcher", "local", "--grace", 2, "--no_python", "yes")
    try:
        os.read(job.process.stdout.fileno(), 100)
        job.process.stdout.close()
        assert job.process.wait(60) == 128 + signal.SIGPIPE
        assert not job.processes()
    finally:
        job.kill_rest()


def test_a_slow_reader_loses_nothing():
    script = "yes | head -c 6000000; exit 0"
    job = Job("-n", 2, "--launcher", "local", "--no_python", "/bin/sh", "-c", script)
    try:
        time.sleep(1)  # meanwhile pipes and queue fill up
        out, _ = job.process.communicate(timeout=120)
        assert out.count(b"[rank 0] y\n") == out.count(b"[rank 1] y\n") == 3000000
    finally:
        job.kill_rest()


def test_a_stuck_reader_does_not_keep_a_failure_waiting():
    job = Job("-n", 2, "--launcher", "local", "--grace", 2, "--no_python", "/bin/sh", "-c",
              "[ $RANK = 0 ] && sleep 1 && exit 8; yes")
    try:
        # Nobody reads, so the launcher cannot end yet; but its ranks are stopped all the same.
        assert wait_for(lambda: job.processes(), 10)
        assert wait_for(lambda: not any(p.startswith(("yes", "/bin/sh")) for p in job.processes().values()), 30), job.processes()
        job.finish()
        assert job.code == 8
    finally:
        job.kill_rest()


def test_binding_gives_each_rank_cores_of_its_own():
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("this machine shows one core; there is nothing to share out")
    script = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    job = launch("-n", 2, "--launcher", "local", "--bind_cores_to_rank", "--no_python", sys.executable, "-c", script)
    assert job.code == 0, job.err
    lines = rank_lines(job.out)
    sets = [set(eval(lines[rank][0].rsplit(" ", 1)[0])) for rank in (0, 1)]
    assert sets[0] and sets[1] and not sets[0] & sets[1]
    too_many = launch("-n", 4 * cores, "--launcher", "local", "--bind_cores_to_rank", "--no_python", "true")
    assert too_many.code == 2 and "cannot have a core each" in too_many.err


def test_files_variables_logs_and_pid(tmp_path):
    (tmp_path / "vars.env").write_text("# mine\nGREETING=hello there\n")
    job = shell("echo $GREETING; cat $TMPDIR/*.capstan", "--env-file", tmp_path / "vars.env", "--save_pid",
                "--enable_each_rank_log", tmp_path / "logs", env=clean_environment(TMPDIR=tmp_path), n=2)
    assert job.code == 0, job.err
    assert rank_lines(job.out)[0] == ["hello there", str(job.process.pid)]
    assert not list(tmp_path.glob("*.capstan"))
    logs = sorted((tmp_path / "logs").iterdir())
    assert [p.name[-10:] for p in logs] == ["_rank0.log", "_rank1.log"]
    assert logs[0].read_text().startswith("hello there\n")


def test_starting_is_a_matter_of_milliseconds():
    """On a busy machine a program waits for its turn; starting nothing at all waits as long."""
    def best(*command):
        seconds = []
        for _ in range(20):
            started = time.monotonic()
            subprocess.run(command, env=clean_environment(), check=True, timeout=60)
            seconds.append(time.monotonic() - started)
        return min(seconds)
    launched, alone = best(CAPSTAN, "launch", "-n", "1", "--no_python", "true"), best("true")
    print(f"capstan launch -n 1 --no_python true: best {launched * 1e3:.1f} ms; true by itself {alone * 1e3:.1f} ms")
    assert launched < 0.05 + 10 * alone  # idle: 50 ms, and 10 more
