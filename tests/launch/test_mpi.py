"""Ranks of C++ programs on the CPU talk MPI: they are started through a real mpirun."""

import shutil
import subprocess

import pytest

from launching import (BIN, CAPSTAN, PYTHON, Job, Terminal, clean_environment, launch, parse_facts, rank_lines, shell, wait_for)

if shutil.which("mpirun") is None:
    pytest.skip("there is no mpirun on this machine (apt-get install openmpi-bin)", allow_module_level=True)
if not (BIN / "mpi_sum_print").exists():
    pytest.skip("this build has no MPI part (apt-get install libopenmpi-dev)", allow_module_level=True)


def test_cpu_ranks_of_a_program_form_one_mpi_world():
    job = launch("-n", 3, "--no_python", BIN / "mpi_sum_print")  # no --launcher: it is chosen
    assert job.code == 0, job.err
    assert rank_lines(job.out) == {rank: [f"mpi rank {rank} of 3, sum 3"] for rank in range(3)}


def test_progress_bars_move_on_a_terminal():
    terminal = Terminal("-n", 2, "--launcher", "mpi", "--grace", 2, "--no_python", "/bin/sh", "-c",
                        "printf '10%%\\r20%%\\r'; read x; sleep 600")
    try:
        terminal.read_until((b"[rank 0] 10%\r", 1))
        terminal.press_ctrl_c()
        terminal.close()
    finally:
        terminal.job.kill_rest()


def test_ranks_under_our_mpirun_know_all_their_facts():
    job = launch("-n", 2, "--launcher", "mpi", "--no_python", BIN / "rank_env_print")
    facts = parse_facts(job.out)
    assert [f["rank"] for f in facts] == ["0", "1"], job.err
    assert all(f["launcher"] == "capstan" and f["mpi_started"] == "true" and f["local_world_size"] == "2" for f in facts)
    assert facts[0]["master_port"] == facts[1]["master_port"] != "0"


def test_ranks_under_a_users_own_mpirun_are_found_without_flags():
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", BIN / "rank_env_print"],
                          env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    facts = parse_facts(done.stdout)
    assert [(f["rank"], f["world_size"], f["local_rank"]) for f in facts] == [(str(r), "3", str(r)) for r in range(3)]
    assert all(f["launcher"] == "mpirun" and f["mpi_started"] == "true" for f in facts)


def test_capstan_launch_inside_mpirun_keeps_every_rank_in_its_place():
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", CAPSTAN, "launch", "-q",
                           "--no_python", BIN / "mpi_sum_print"],
                          env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank {r}] mpi rank {r} of 2, sum 1" for r in range(2)]


def test_a_failing_rank_ends_the_world_with_its_own_code():
    job = launch("-n", 3, "--grace", 3, "--no_python", BIN / "mpi_sum_print", 1)
    assert job.code == 9, job.err
    assert job.err.splitlines()[-1] == "capstan: rank 1 exited with code 9; the other ranks were stopped"


def test_a_killed_rank_and_a_stubborn_one():
    job = shell("trap '' TERM; [ $RANK = 1 ] && sleep 0.5 && kill -9 $$; echo up; while :; do sleep 1; done",
                n=2, launcher="mpi")
    assert job.code == 137
    assert "rank 1 was killed from outside" in job.err.splitlines()[-1]


def test_grandchildren_under_mpirun():
    job = shell("setsid sleep 600 & sleep 601 & sleep 0.3; [ $RANK = 0 ] && exit 4; wait", n=2, launcher="mpi")
    assert job.code == 4


def test_python_ranks_under_mpirun(tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import os, sys; print(os.environ['RANK'], sys.argv[1:])\n")
    job = launch("-n", 2, "--launcher", "mpi", script, "a b", env=clean_environment(CAPSTAN_PYTHON=PYTHON))
    assert rank_lines(job.out) == {r: [f"{r} ['--local_rank={r}', 'a b']"] for r in range(2)}, job.err


def test_killing_the_launcher_takes_the_mpi_ranks_with_it():
    job = Job("-n", 2, "--launcher", "mpi", "--grace", 2, "--no_python", "/bin/sh", "-c", "sleep 600")
    try:
        assert wait_for(lambda: sum(p.startswith(("sleep", "/bin/sh")) for p in job.processes().values()) >= 2)
        job.process.kill()
        job.process.wait()
        assert job.wait_until_gone(60), job.processes()
    finally:
        job.kill_rest()


def test_an_mpirun_that_cannot_start_is_explained():
    job = launch("-n", 2, "--launcher", "mpi", "--launcher_args", "--no-such-option", "--no_python", "true")
    assert job.code != 0
    assert "mpirun exited with code" in job.err.splitlines()[-1]
