"""MPI ranks on two hosts: two network namespaces with their own addresses and host names, joined by
a veth pair. The link is cut in the middle of the run; both sides report a CommError."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

BIN = Path(os.environ.get("CAPSTAN_BIN", "build/release/bin")).resolve()
TIMEOUT_S = 5  # of the group


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


def missing():
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare", "mpirun"):
        if shutil.which(program) is None:
            return f"there is no `{program}` on this machine"
    if not (BIN / "comm_ranks").exists():
        return "this build has no MPI"
    trial = f"capstan-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", trial], capture_output=True).returncode != 0:
        return "the kernel makes no network namespaces here"
    run("ip", "netns", "del", trial)
    return None


class TwoHosts:
    """Host 0 and 1: namespaces `names[i]` with addresses `addresses[i]`."""

    def __init__(self, folder):
        self.folder = folder
        number = os.getpid() % 65536
        self.names = [f"capstan-{number}-{i}" for i in range(2)]
        self.links = [f"cs{number}-{i}" for i in range(2)]
        # 198.18.0.0/15 is set aside for tests of networks.
        self.addresses = [f"198.18.{number % 256}.{i + 1}" for i in range(2)]

    def __enter__(self):
        for name in self.names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1])
        for name, link, address in zip(self.names, self.links, self.addresses):
            run("ip", "link", "set", link, "netns", name)
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", link)
            run("ip", "-n", name, "link", "set", link, "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        agent = self.folder / "agent"  # what mpirun uses in place of ssh: `agent host command…`
        agent.write_text("#!/bin/sh\nshift\nexec " + self.inside(1) + ' "$*"\n')
        agent.chmod(0o755)
        return self

    def __exit__(self, *_):
        for name in self.names:
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in listed.stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def inside(self, host):
        """A prefix that runs a shell command on a host, with a host name of its own."""
        return (f"ip netns exec {self.names[host]} unshare --uts sh -c "
                f"'hostname host{host}; exec sh -c \"$0\"'")

    def start(self, arguments):
        """Starts one rank per host; each writes to its own file, which survives the cut."""
        rank = f"exec {BIN}/comm_ranks {arguments} > {self.folder}/rank.$OMPI_COMM_WORLD_RANK 2>&1"
        (self.folder / "rank.sh").write_text(f"#!/bin/sh\n{rank}\n")
        (self.folder / "rank.sh").chmod(0o755)
        subnet = self.addresses[0].rsplit(".", 1)[0] + ".0/24"
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--enable-recovery", "--bind-to", "none",
                  "--mca", "plm_rsh_agent", str(self.folder / "agent"), "--mca", "btl", "tcp,self",
                  "--mca", "btl_tcp_if_include", subnet, "--mca", "oob_tcp_if_include", subnet,
                  "--host", ",".join(f"{address}:1" for address in self.addresses), "-np", "2",
                  str(self.folder / "rank.sh")]
        command = self.inside(0) + " " + repr(" ".join(mpirun))
        log = open(self.folder / "mpirun.log", "w")
        return subprocess.Popen(["sh", "-c", command], stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def cut(self):
        run("ip", "-n", self.names[1], "link", "set", self.links[1], "down")

    def output(self, rank):
        path = self.folder / f"rank.{rank}"
        return path.read_text() if path.exists() else ""

    def log(self):
        return (self.folder / "mpirun.log").read_text() + self.output(0) + self.output(1)


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.fixture
def hosts(tmp_path):
    reason = missing()
    if reason:
        pytest.skip(reason)
    with TwoHosts(tmp_path) as made:
        yield made


def test_collectives_between_two_hosts(hosts):
    process = hosts.start("check 1")
    assert wait_until(lambda: process.poll() is not None, 120), hosts.log()
    assert process.returncode == 0, hosts.log()
    assert hosts.output(0) == "[0] ok\n"
    assert hosts.output(1) == "[1] ok\n"


def test_a_host_that_is_cut_off_is_a_comm_error_on_both_sides(hosts):
    nobody = 99
    process = hosts.start(f"fail all_reduce {nobody} 0 {TIMEOUT_S}")
    try:
        assert wait_until(lambda: all("going" in hosts.output(r) for r in range(2)), 60), hosts.log()
        hosts.cut()
        for rank in range(2):
            assert wait_until(lambda: "CommError after" in hosts.output(rank), TIMEOUT_S + 60), hosts.log()
            assert f"rank {1 - rank} does not answer" in hosts.output(rank)
            assert "last operations of rank" in hosts.output(rank)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
