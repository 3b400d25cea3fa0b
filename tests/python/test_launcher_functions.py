"""What scripts import from deepspeed.launcher.runner; filters and hostfiles agree with the program's own."""

import os
import subprocess

import pytest

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

import capstan  # noqa: E402
from capstan import program  # noqa: E402
from deepspeed.launcher import runner  # noqa: E402

HOSTFILE = "worker-1 slots=3   # the first\n\n  worker-2\tslots=2\n# worker-3 slots=9\n"
GOOD = [("worker-1", ""), ("worker-2:1", ""), ("worker-2@worker-1:0,2,0", ""), ("worker-1:1@worker-1:0", ""),
        ("", "worker-2"), ("", "worker-1:0,1,2@worker-2:0"), ("", "")]
BAD = [("jeff", ""), ("", "jeff:0"), ("worker-1:3", ""), ("", "worker-2@worker-1:x"), ("worker-1:0@5", ""),
       ("worker-1", "worker-2")]


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hostfile"
    path.write_text(HOSTFILE)
    return path


def program_says(hostfile, include, exclude):
    """The (host, slot) pairs that `capstan launch --dry-run` would start, or None for an error."""
    words = [program.find(), "launch", "--dry-run", "--hostfile", hostfile, "--launcher", "ssh"]
    words += [*(["--include", include] if include else []), *(["--exclude", exclude] if exclude else []), "--no_python", "true"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout


@pytest.mark.parametrize("include, exclude", GOOD)
def test_a_filter_leaves_what_the_program_starts(hostfile, include, exclude):
    left = runner.parse_inclusion_exclusion(runner.fetch_hostfile(hostfile), include, exclude)
    code, text = program_says(hostfile, include, exclude)
    assert code == 0, text
    for host in ("worker-1", "worker-2"):
        assert (host in text) == (host in left), text
    assert f"{sum(map(len, left.values()))} rank" in text, text


def test_a_host_that_is_named_whole_and_in_part_is_whole(hostfile):
    left = runner.parse_inclusion_exclusion(runner.fetch_hostfile(hostfile), "worker-1@worker-1:0", "")
    assert left == {"worker-1": [0, 1, 2]}
    assert "3 ranks" in program_says(hostfile, "worker-1@worker-1:0", "")[1]


@pytest.mark.parametrize("include, exclude", BAD)
def test_a_wrong_filter_is_a_value_error_here_and_an_error_there(hostfile, include, exclude):
    with pytest.raises(ValueError) as caught:
        runner.parse_inclusion_exclusion(runner.fetch_hostfile(hostfile), include, exclude)
    assert isinstance(caught.value, capstan.ConfigError) and caught.value.fix
    assert program_says(hostfile, include, exclude)[0] != 0


def test_slots_keep_the_order_of_the_hosts():
    hosts = {"b": [0, 1, 2], "a": [0, 1]}
    assert list(runner.parse_resource_filter(hosts, include_str="a@b:2,0").items()) == [("b", [0, 2]), ("a", [0, 1])]
    assert runner.parse_resource_filter(hosts, exclude_str="a@b:0,1,2") == {}
    assert runner.parse_resource_filter(hosts) is hosts and hosts == {"b": [0, 1, 2], "a": [0, 1]}


@pytest.mark.parametrize("lines", [["a slots=2", "a slots=1"], ["this is bad slots=1"], ["missing"], [" "],
                                   ["a slots=0"], ["a slots=2x"]])
def test_a_bad_hostfile_is_told_with_its_lines(lines):
    with pytest.raises(ValueError, match="hostfile"):
        runner._parse_hostfile(lines)


def test_hostfiles_and_worlds(hostfile, tmp_path):
    assert list(runner.fetch_hostfile(hostfile).items()) == [("worker-1", 3), ("worker-2", 2)]
    assert runner.fetch_hostfile(tmp_path / "none") is None
    world = {"worker-1": [0, 1], "worker-2": [1]}
    assert runner.decode_world_info(runner.encode_world_info(world)) == world
    assert runner.parse_num_nodes("2", False) == (2, -1) and runner.parse_num_nodes("2:4", True) == (2, 4)


@pytest.mark.parametrize("number", ["--num_nodes", "--num_gpus"])
@pytest.mark.parametrize("chosen", ["-i", "-e"])
def test_numbers_and_filters_exclude_each_other(number, chosen):
    before = dict(os.environ)
    with pytest.raises(ValueError, match="filter"):
        runner.main([number, "1", chosen, "localhost", "foo.py"])
    assert dict(os.environ) == before
