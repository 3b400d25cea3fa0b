"""Every mistake of the user ends with exit code 2 and a message that says what, where and how to fix it."""

import re

import pytest

from launching import CAPSTAN, Job, clean_environment, launch

CASES = {
    "no program": ([], "there is no program to start"),
    "unknown flag": (["--num_gpu", 2, "x.py"], "did you mean --num_gpus?"),
    "torchrun's flag": (["--nproc_per_node=2", "x.py"], "-n N"),
    "autotuning without a configuration": (["--autotuning", "run", "x.py"], "name no configuration"),
    "elastic": (["--elastic_training", "x.py"], "not available yet"),
    "no such script": (["missing.py"], "there is no script \"missing.py\""),
    "no such program": (["--no_python", "missing-program"], "there is no program \"missing-program\""),
    "a program as a script": ([CAPSTAN], "add --no_python"),
    "no such hostfile": (["--hostfile", "nowhere", "--no_python", "true"], "cannot read the file \"nowhere\""),
    "a folder as hostfile": (["--hostfile", "/tmp", "--no_python", "true"], "cannot read the file"),
    "no such host": (["--hostfile", "HOSTS", "--include", "gpu-l", "--no_python", "true"], "did you mean \"gpu-1\"?"),
    "no such slot": (["--hostfile", "HOSTS", "--include", "gpu-1:7", "--no_python", "true"], "has no slot \"7\""),
    "too many hosts": (["--hostfile", "HOSTS", "--num_nodes", 9, "--no_python", "true"], "9 hosts were requested"),
    "too many slots": (["--hostfile", "HOSTS", "-n", 9, "--no_python", "true"], "which has 2 slots"),
    "zero ranks": (["-n", 0, "--no_python", "true"], "0 ranks were requested"),
    "both filters": (["-i", "a", "-e", "b", "--no_python", "true"], "both --include and --exclude"),
    "filter and number": (["-i", "a", "-n", 1, "--no_python", "true"], "the filter already says"),
    "a bad port": (["--master_port", 99999, "--no_python", "true"], "99999"),
    "an unclosed quote": (["--launcher_args", "'a", "--no_python", "true"], "is not closed"),
    "no slurm job": (["--launcher", "slurm", "--no_python", "true"], "this is not a SLURM job"),
    "a negative grace": (["--grace", "-1", "--no_python", "true"], "--grace"),
    "node rank alone": (["--node_rank", 0, "--no_python", "true"], "--no_ssh and --node_rank"),
    "an option as a host": (["--hostfile", "OPTION", "--launcher", "ssh", "--no_python", "true"], "is no name of a host"),
    "a bad variables file": (["--env-file", "HOSTS", "--no_python", "true"], "is not NAME=VALUE"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "_"))
def test_mistakes_are_explained(case, tmp_path):
    args, expected = CASES[case]
    (tmp_path / "HOSTS").write_text("gpu-1 slots=2\ngpu-2 slots=2\n")
    (tmp_path / "OPTION").write_text("-oProxyCommand=touch${IFS}made slots=1\n")
    job = launch(*args, cwd=tmp_path)
    assert job.code == 2 and not (tmp_path / "made").exists(), job.err
    assert expected in job.err
    assert "fix:" in job.err and "bug in capstan" not in job.err
    assert job.out == ""


def test_wrong_values_are_refused_by_the_command_line():
    for args, what, fix in ((["-n", "two"], "--num_accelerators is two", "give a whole number"),
                            (["--launcher", "carrier-pigeon"], "--launcher is carrier-pigeon", "give one of auto,local,ssh,slurm,mpi")):
        job = launch(*args, "--no_python", "true")
        assert job.code == 2 and job.out == "", job.out
        assert re.fullmatch(rf"capstan: error: \S*{what}\n  where: capstan launch\n  fix:   {fix}\n", job.err), job.err


def test_nonsense_in_the_environment_is_explained():
    job = launch("--no_python", "true", env=clean_environment(RANK="five", WORLD_SIZE="2"))
    assert job.code == 2 and "RANK=\"five\" is not a usable whole number" in job.err


def test_dry_run_shows_commands_and_starts_nothing(tmp_path):
    (tmp_path / "HOSTS").write_text("gpu-1 slots=2\ngpu-2 slots=1\n")
    job = launch("--hostfile", "HOSTS", "--exclude", "gpu-1:0", "--launcher", "ssh", "--dry-run", "--no_python",
                 "touch", tmp_path / "made", cwd=tmp_path)
    assert job.code == 0, job.err
    assert "launcher ssh, 2 ranks on 2 hosts" in job.out
    assert "--pool gpu-1:1@gpu-2:0 --node_rank 1" in job.out
    assert not (tmp_path / "made").exists()


def test_random_words_never_crash_the_launcher():
    import random
    rng = random.Random(7)
    words = ["-n", "--hostfile", "--include", "@", ":", "a:0,1@b", "--launcher", "mpi", "ssh", "-1", "", "--master_port",
             "99", "--dry-run", "--no_python", "true", "\xff", "--grace", "nan", "1e400", "--module", "--bind_core_list"]
    for _ in range(300):
        args = [rng.choice(words) for _ in range(rng.randint(0, 6))]
        job = Job("--dry-run", *args)
        job.finish(60)
        assert job.code in (0, 2), (args, job.code, job.err)
