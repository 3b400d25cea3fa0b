"""The ssh launcher against a real sshd that answers under two host names."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import uuid
from pathlib import Path

import pytest

from launching import BIN, Job, clean_environment, launch, parse_facts, rank_lines, wait_for

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"])
if SSHD is None or shutil.which("ssh") is None:
    pytest.skip("there is no sshd on this machine (apt-get install openssh-server)", allow_module_level=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A folder with a hostfile of two hosts, alpha and beta, that the ssh configuration there knows."""
    folder = tmp_path_factory.mktemp("ssh")
    folder.chmod(0o700)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    port = free_port()
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile {folder}/sshd.pid\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n")
    user = pwd.getpwuid(os.getuid()).pw_name
    (folder / "ssh_config").write_text(
        "".join(f"Host {name}\n  HostName {addr}\n" for name, addr in (("alpha", "127.0.0.1"), ("beta", "127.0.0.2"))) +
        f"Host *\n  Port {port}\n  User {user}\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking no\n  LogLevel ERROR\n")
    (folder / "hostfile").write_text("alpha slots=2\nbeta slots=1\n")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own condition
    with open(folder / "sshd.log", "wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stdout=log, stderr=log,
                                  stdin=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: answers(port) or server.poll() is not None)
        assert server.poll() is None, (folder / "sshd.log").read_text()
        yield folder
    finally:
        server.terminate()
        server.wait(30)


def ssh_flags(cluster):
    return ["--hostfile", cluster / "hostfile", "--launcher_args", f"-F {cluster}/ssh_config", "--grace", 2]


def test_ranks_run_on_two_hosts(cluster):
    job = launch(*ssh_flags(cluster), "--launcher", "ssh", "--no_python", BIN / "rank_env_print")
    assert job.code == 0, job.err
    facts = parse_facts(job.out)
    places = [(f["rank"], f["local_rank"], f["node_rank"], f["local_world_size"]) for f in facts]
    assert places == [("0", "0", "0", "2"), ("1", "1", "0", "2"), ("2", "0", "1", "1")]
    # The nickname "alpha" means nothing to a rank; the address behind it does.
    assert {f["master_addr"] for f in facts} == {"127.0.0.1"}
    assert len({f["master_port"] for f in facts}) == 1 and facts[0]["master_port"] != "0"
    assert all(f["launcher"] == "capstan" and f["mpi_started"] == "false" for f in facts)


def test_filters_choose_hosts_and_slots(cluster):
    script = "echo $RANK $CUDA_VISIBLE_DEVICES ${SSH_CONNECTION% *}"
    job = launch(*ssh_flags(cluster), "--include", "beta@alpha:1", "--launcher", "ssh", "--no_python", "/bin/sh", "-c",
                 script)
    assert job.code == 0, job.err
    lines = rank_lines(job.out)
    assert lines[0][0].startswith("0 1 ") and lines[0][0].endswith("127.0.0.1")
    assert lines[1][0].startswith("1 0 ") and lines[1][0].endswith("127.0.0.2")


def test_folder_variables_and_odd_arguments_travel(cluster, tmp_path):
    (tmp_path / "vars").write_text("GREETING=it's a \"$HOME\" test\n")
    (tmp_path / "s.py").write_text(
        "import os, sys; print(os.getcwd(), os.environ['GREETING'], os.environ['NCCL_X'], sys.argv[1:])\n")
    job = launch(*ssh_flags(cluster), "--launcher", "ssh", "--env-file", tmp_path / "vars", "s.py", "a b", "$(x)'\"",
                 cwd=tmp_path, env=clean_environment(NCCL_X="1 2", CAPSTAN_PYTHON=os.environ["CAPSTAN_PYTHON"]))
    assert job.code == 0, job.err
    assert rank_lines(job.out)[2] == [
        f"{tmp_path} it's a \"$HOME\" test 1 2 ['--local_rank=0', 'a b', '$(x)\\'\"']"]


def test_values_of_variables_are_in_no_command_line(cluster, tmp_path):
    """Every user of a host can read the words of its processes."""
    secret = uuid.uuid4().hex
    (tmp_path / "vars").write_text(f"PASSWORD={secret} of the file\n")
    long = f"{secret} " * 3500  # nearly as long as Linux lets a variable be
    env = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}", HF_TOKEN=f"{secret}\nof \\n two lines", WANDB_API_KEY=long,
                            CAPSTAN_PYTHON=os.environ["CAPSTAN_PYTHON"])
    (tmp_path / "ssh").write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/words\nexec {shutil.which('ssh')} \"$@\"\n")
    (tmp_path / "ssh").chmod(0o755)
    # Also those of the agent's side: the rank looks for them from where it is.
    (tmp_path / "s.py").write_text(
        "import os, pathlib\n"
        "values = [os.environ[n] for n in ('PASSWORD', 'HF_TOKEN', 'WANDB_API_KEY')]\n"
        "def words(pid):\n"
        "    try: return (pathlib.Path('/proc') / pid / 'cmdline').read_text()\n"
        "    except OSError: return ''\n"  # it has ended
        "print(values, any(values[0].split()[0] in words(pid) for pid in os.listdir('/proc') if pid.isdigit()))\n")
    flags = [*ssh_flags(cluster), "--launcher", "ssh", "--env-file", tmp_path / "vars"]
    job = launch(*flags, "s.py", cwd=tmp_path, env=env)
    assert job.code == 0, job.err
    expected = f"{[secret + ' of the file', env['HF_TOKEN'], long]} False"
    assert [''.join(lines) for lines in rank_lines(job.out).values()] == [expected] * 3  # long lines come in pieces
    words = (tmp_path / "words").read_text()
    assert words.count("launch-agent") == 2 and secret not in words
    shown = launch(*flags, "--dry-run", "s.py", cwd=tmp_path, env=env)
    assert shown.code == 0 and secret not in shown.out + shown.err
    assert all(name in shown.out for name in ("PASSWORD", "HF_TOKEN", "WANDB_API_KEY"))


def test_a_failure_on_one_host_stops_the_other(cluster):
    script = "[ $RANK = 2 ] && sleep 0.5 && echo cause >&2 && exit 6; trap '' TERM; setsid sleep 600 & sleep 601"
    job = launch(*ssh_flags(cluster), "--launcher", "ssh", "--no_python", "/bin/sh", "-c", script)
    assert job.code == 6, job.err
    assert job.err.endswith("[rank 2] cause\ncapstan: rank 2 exited with code 6; the other ranks were stopped\n")
    assert job.wait_until_gone(), job.processes()


def test_stopping_the_launcher_stops_remote_ranks(cluster):
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        job = Job(*ssh_flags(cluster), "--launcher", "ssh", "--env-file", "/dev/null", "--no_python", "/bin/sh", "-c",
                  f"echo up; echo $CAPSTAN_TEST_MARK; sleep 600")
        try:
            seen = b""
            while seen.count(b"up") < 3:
                seen += os.read(job.process.stdout.fileno(), 1000)
            assert job.mark.encode() in seen or wait_for(lambda: job.processes())
            job.process.send_signal(number)
            assert job.process.wait(60) == code
            assert job.wait_until_gone(), job.processes()
        finally:
            job.kill_rest()


def test_a_host_that_does_not_answer_is_named(cluster, tmp_path):
    (tmp_path / "hosts").write_text("alpha slots=1\ngone slots=1\n")
    config = (cluster / "ssh_config").read_text()
    (tmp_path / "config").write_text(f"Host gone\n  HostName 127.0.0.1\n  Port {free_port()}\n" + config)
    job = launch("--hostfile", tmp_path / "hosts", "--launcher", "ssh", "--launcher_args", f"-F {tmp_path}/config",
                 "--no_python", "sleep", 600)
    assert job.code == 255
    last = job.err.splitlines()[-1]
    assert "ssh gone exited with code 255 before rank 1 had ended" in last
    assert "Connection refused" in last and "ssh -o BatchMode=yes gone true" in last


def test_chatty_login_shells_do_no_harm(cluster, tmp_path):
    config = (cluster / "ssh_config").read_text()
    # What a start-up file prints comes before the agent's first word.
    fake = tmp_path / "ssh"
    fake.write_text(f"#!/bin/sh\necho Welcome to this host\nexec {shutil.which('ssh')} \"$@\"\n")
    fake.chmod(0o755)
    (tmp_path / "config").write_text(config)
    env = clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    job = launch(*ssh_flags(cluster), "--launcher", "ssh", "--no_python", "echo", "fine", env=env)
    assert job.code == 0, job.err
    assert job.out.count("fine") == 3 and "[ssh alpha] Welcome to this host" in job.err


def test_hosts_can_be_started_by_hand(cluster, tmp_path):
    (tmp_path / "hosts").write_text("127.0.0.1 slots=1\n127.0.0.2 slots=1\n")
    port = free_port()
    jobs = [Job("--hostfile", tmp_path / "hosts", "--no_ssh", "--node_rank", node, "--master_port", port, "--no_python",
                BIN / "rank_env_print") for node in (0, 1)]
    facts = []
    for job in jobs:
        job.finish()
        assert job.code == 0, job.err
        facts += parse_facts(job.out)
    assert [(f["rank"], f["world_size"], f["master_port"]) for f in facts] == [("0", "2", str(port)), ("1", "2", str(port))]


def test_mpirun_reaches_two_hosts(cluster, tmp_path):
    if shutil.which("mpirun") is None or not (BIN / "mpi_sum_print").exists():
        pytest.skip("there is no MPI on this machine or in this build")
    (tmp_path / "ssh").write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/words\nexec {shutil.which('ssh')} \"$@\"\n")
    (tmp_path / "ssh").chmod(0o755)
    job = launch("--hostfile", cluster / "hostfile", "--launcher", "mpi", "--grace", 2, "--launcher_args",
                 f"--mca plm_rsh_args '-F {cluster}/ssh_config' --mca oob_tcp_if_include lo --mca btl_tcp_if_include lo "
                 "--mca btl tcp,self", "--no_python", BIN / "mpi_sum_print",
                 env=clean_environment(PATH=f"{tmp_path}:{os.environ['PATH']}", HF_TOKEN="secret"))
    assert job.code == 0, job.err
    assert rank_lines(job.out) == {rank: [f"mpi rank {rank} of 3, sum 3"] for rank in range(3)}
    words = (tmp_path / "words").read_text()
    assert words and "secret" not in words
