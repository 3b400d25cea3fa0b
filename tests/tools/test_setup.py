"""Set-up on a machine that lacks things: what would be installed, and what is said when it cannot be."""

import re
import stat
import subprocess

import pytest

from load_tool import SOURCE, load_tool

setup = load_tool("setup")


@pytest.fixture
def fake_path(tmp_path, monkeypatch):
    """An empty PATH folder to put stand-ins into."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name, script):
        (folder / name).write_text("#!/bin/sh\n" + script)
        (folder / name).chmod(0o755)
    return add


def test_sections_do_not_leak_into_each_other():
    build = setup.read_section(setup.PACKAGES, "build")
    test = setup.read_section(setup.PACKAGES, "test")
    assert "g++" in build and "python3-venv" in build and "slurmctld" in test
    assert not set(build) & set(test)
    with pytest.raises(setup.SetupError, match="no section 'games'"):
        setup.read_section(setup.PACKAGES, "games")


def test_package_names_are_names():
    for section in ("build", "test"):
        for name in setup.read_section(setup.PACKAGES, section):
            assert re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name)


# What a source or a CMake file says if it uses the package.
EVIDENCE = {
    "libcli11-dev": "#include <CLI/",
    "libfmt-dev": "#include <fmt/",
    "libgmock-dev": "#include <gmock/",
    "libgtest-dev": "#include <gtest/",
    "libhwloc-dev": "#include <hwloc.h>",
    "libopenmpi-dev": "#include <mpi.h>",
    "liburing-dev": "#include <liburing.h>",
    "nlohmann-json3-dev": "#include <nlohmann/",
    "python3-dev": "/Python.h",
}


def test_every_library_that_is_installed_is_used():
    files = [p for folder in ("capstan", "tests", "benchmarks", "cmake") for p in (SOURCE / folder).rglob("*")
             if p.suffix in (".h", ".cpp", ".cu", ".cmake")]
    texts = [p.read_text() for p in files]
    libraries = {name for name in setup.read_section(setup.PACKAGES, "build") if name.endswith("-dev")}
    assert libraries == set(EVIDENCE)
    assert [name for name in libraries if not any(EVIDENCE[name] in text for text in texts)] == []


def test_only_missing_packages_are_named(fake_path):
    fake_path("dpkg-query", 'echo "g++ installed"; echo "ccache not-installed"; exit 1')
    assert setup.missing_packages(["g++", "ccache", "libfmt-dev"]) == ["ccache", "libfmt-dev"]


def test_without_dpkg_the_message_names_packages_and_the_way_out(fake_path):
    with pytest.raises(setup.SetupError, match="(?s)equivalents of: g.*SETUP=none"):
        setup.missing_packages(["g++"])


def test_root_needs_no_sudo(monkeypatch):
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    assert setup.root_prefix(["g++"]) == []


def test_a_user_with_sudo_uses_it(monkeypatch, fake_path):
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)
    fake_path("sudo", "exit 0")
    assert setup.root_prefix(["g++"]) == ["sudo"]


@pytest.mark.parametrize("sudo", [None, "exit 1"])
def test_a_user_without_rights_gets_the_exact_command(monkeypatch, fake_path, sudo):
    monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(setup.sys.stdin, "isatty", lambda: False, raising=False)
    if sudo:
        fake_path("sudo", sudo)
    with pytest.raises(setup.SetupError) as error:
        setup.root_prefix(["g++", "ccache"])
    assert "apt-get update && apt-get install --no-install-recommends -y g++ ccache" in str(error.value)


def test_services_are_held_back_only_while_packages_are_installed(tmp_path, monkeypatch):
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(setup, "POLICY", policy)
    with pytest.raises(RuntimeError):
        with setup.no_service_starts([]):
            assert policy.stat().st_mode & stat.S_IXUSR
            assert subprocess.run([str(policy)]).returncode == 101
            raise RuntimeError("apt failed")
    assert not policy.exists()


def test_an_administrators_own_rule_is_kept(tmp_path, monkeypatch):
    policy = tmp_path / "policy-rc.d"
    policy.write_text("mine")
    monkeypatch.setattr(setup, "POLICY", policy)
    with setup.no_service_starts([]):
        pass
    assert policy.read_text() == "mine"


def test_packages_are_looked_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "VENV", tmp_path)
    calls = []
    monkeypatch.setattr(setup, "missing_packages", lambda names: calls.append(names) or [])
    setup.install_packages("build")
    setup.install_packages("build")
    assert len(calls) == 1
    monkeypatch.setattr(setup, "read_section", lambda path, section: ["another"])
    setup.install_packages("build")
    assert calls[1] == ["another"]


@pytest.mark.parametrize("section", ["base", "cuda"])
def test_every_line_of_the_lock_is_pinned_and_covers_what_was_asked_for(section):
    def name(line):
        return re.match(r"[A-Za-z0-9._-]+", line).group().lower()
    locked = setup.read_section(setup.LOCK, section)
    for line in locked:
        assert re.fullmatch(r'[a-z0-9-]+==[0-9][0-9a-z.]*( ; python_version [<>]=? "3\.\d+")?', line), line
    wanted = setup.read_section(SOURCE / "requirements.in", section)
    assert {name(line) for line in wanted} <= {name(line) for line in locked}
