"""Inside SLURM: a real controller and node daemon on loopback, made for this test and gone after it."""

import os
import re
import shutil
import socket
import subprocess

import pytest

from launching import (BIN, CAPSTAN, PYTHON, Job, clean_environment, launch, parse_facts, rank_lines, wait_for)

SBIN = "/usr/sbin:/usr/local/sbin:" + os.environ["PATH"]
MISSING = [name for name in ("slurmctld", "slurmd", "munged", "srun", "sbatch") if shutil.which(name, path=SBIN) is None]
if MISSING:
    pytest.skip(f"there is no {', '.join(MISSING)} on this machine (apt-get install slurm-wlm munge)",
                allow_module_level=True)
if os.getuid() != 0:
    pytest.skip("slurmd needs root to start tasks", allow_module_level=True)

CONFIG = """
ClusterName=capstan
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=3
MessageTimeout=60
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:64 State=UP
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.env = clean_environment(SLURM_CONF=folder / "slurm.conf", CAPSTAN_PYTHON=PYTHON,
                                     PATH=SBIN)
        self.daemons = []

    def start(self):
        folder = self.folder
        folder.chmod(0o755)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        self.daemon("munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
                    f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
                    f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed")
        assert wait_for(lambda: (folder / "munge.socket").exists(), 30), self.logs()
        ctld_port, slurmd_port = free_ports(2)
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, ctld_port=ctld_port, slurmd_port=slurmd_port,
                                                         cpus=os.cpu_count()))
        self.daemon("slurmctld", "-D", "-c", "-f", folder / "slurm.conf")
        self.daemon("slurmd", "-D", "-f", folder / "slurm.conf", "-N", "localhost")
        idle = wait_for(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False).stdout, 90)
        assert idle, self.logs()

    def daemon(self, name, *args):
        with open(self.folder / f"{name}.out", "wb") as out:
            self.daemons.append(subprocess.Popen([shutil.which(name, path=SBIN), *map(str, args)], env=self.env,
                                                 stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                 start_new_session=True))

    def run(self, *command, check=True, **more):
        done = subprocess.run(list(map(str, command)), env={**self.env, **more}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=180, cwd=self.folder)
        assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done

    def logs(self):
        return "\n".join(f"== {p.name}\n" + p.read_text(errors="replace")[-2000:]
                         for p in [*self.folder.glob("*.log"), *self.folder.glob("*.out")])

    def stop(self):
        self.run("scancel", "-u", "root", check=False)
        wait_for(lambda: not self.run("squeue", "-h", check=False).stdout.strip(), 30)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def submit(slurm, script, tasks=2):
    """Runs a batch script to its end; returns its output and its exit code."""
    out = slurm.folder / f"batch-{os.urandom(4).hex()}.out"
    (slurm.folder / "job.sh").write_text("#!/bin/sh\n" + script)
    job = slurm.run("sbatch", "--parsable", "-n", tasks, "-O", "-o", out, "--export=ALL", "job.sh").stdout.strip()

    def ended():
        text = slurm.run("scontrol", "show", "job", job).stdout
        done = re.search(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)", text)
        return done and re.search(r"ExitCode=(\d+):(\d+)", text)

    code = wait_for(ended, 120)
    assert code, slurm.logs()
    return out.read_text(), int(code[1])


def test_tasks_of_srun_find_their_rank_without_flags(slurm):
    done = slurm.run("srun", "-n", 2, "-O", BIN / "rank_env_print")
    facts = parse_facts(done.stdout)
    assert [(f["rank"], f["world_size"], f["local_rank"]) for f in facts] == [("0", "2", "0"), ("1", "2", "1")]
    assert all(f["launcher"] == "slurm" and f["mpi_started"] == "false" and f["master_addr"] == "localhost"
               for f in facts)
    assert facts[0]["master_port"] == facts[1]["master_port"] != "0"


def test_tasks_of_srun_with_pmix_form_an_mpi_world(slurm):
    if "pmix" not in slurm.run("srun", "--mpi=list", check=False).stdout + slurm.run("srun", "--mpi=list").stderr:
        pytest.skip("this SLURM has no pmix plugin")
    facts = parse_facts(slurm.run("srun", "-n", 2, "-O", "--mpi=pmix", BIN / "rank_env_print").stdout)
    assert [(f["launcher"], f["mpi_started"], f["world_size"]) for f in facts] == [("slurm", "true", "2")] * 2


def test_capstan_launch_in_a_batch_job_uses_the_whole_allocation(slurm):
    text, code = submit(slurm, f"{CAPSTAN} launch --no_python {BIN}/rank_env_print\n", tasks=2)
    assert code == 0, text
    facts = parse_facts(text)
    assert [(f["rank"], f["world_size"], f["launcher"]) for f in facts] == [("0", "2", "capstan"), ("1", "2", "capstan")]
    assert facts[0]["master_port"] == facts[1]["master_port"] != "0"


def test_cpu_ranks_of_a_program_talk_mpi_in_a_batch_job(slurm):
    if not (BIN / "mpi_sum_print").exists():
        pytest.skip("this build has no MPI part")
    text, code = submit(slurm, f"{CAPSTAN} launch --no_python {BIN}/mpi_sum_print\n")
    assert code == 0, text
    assert rank_lines(text) == {rank: [f"mpi rank {rank} of 2, sum 1"] for rank in range(2)}


def test_a_failing_rank_fails_the_batch_job_with_its_code(slurm):
    script = "[ $RANK = 1 ] && sleep 0.5 && echo cause >&2 && exit 7; sleep 600"
    text, code = submit(slurm, f"{CAPSTAN} launch --grace 2 --no_python /bin/sh -c '{script}'\n")
    assert code == 7, text
    assert text.rstrip().endswith("[rank 1] cause\ncapstan: rank 1 exited with code 7; the other ranks were stopped")


def test_python_ranks_in_an_allocation_of_salloc(slurm, tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import os, sys; print(os.environ['RANK'], os.environ['CAPSTAN_LAUNCHER'], sys.argv[1:])\n")
    done = slurm.run("salloc", "-n", 2, "-O", CAPSTAN, "launch", "-n", 2, script, "x")
    assert rank_lines(done.stdout) == {r: [f"{r} slurm ['--local_rank={r}', 'x']"] for r in range(2)}, done.stderr


def test_one_launcher_per_task_as_cluster_scripts_do(slurm, tmp_path):
    """srun starts torch.distributed.launch with --node_rank $SLURM_PROCID; its workers find their rank."""
    pytest.importorskip("torch", reason="torch.distributed.launch comes with torch")
    script = tmp_path / "start.py"
    script.write_text(f"import os; os.execv({str(BIN / 'rank_env_print')!r}, ['rank_env_print'])\n")
    port = free_ports(1)[0]
    done = slurm.run("srun", "-n", 1, "sh", "-c",
                     f"{PYTHON} -u -m torch.distributed.launch --nproc_per_node 2 --nnodes 1 --master_addr 127.0.0.1 "
                     f"--master_port {port} --node_rank $SLURM_PROCID {script}")
    facts = parse_facts(done.stdout)
    assert [(f["rank"], f["world_size"], f["launcher"]) for f in facts] == [("0", "2", "torchrun"), ("1", "2", "torchrun")]


def test_capstan_launch_as_the_task_itself(slurm):
    done = slurm.run("srun", "-n", 2, "-O", CAPSTAN, "launch", "-q", "--no_python", BIN / "rank_env_print")
    facts = parse_facts(done.stdout)
    assert [(f["rank"], f["world_size"], f["launcher"]) for f in facts] == [("0", "2", "capstan"), ("1", "2", "capstan")]


def test_cancelling_a_job_leaves_no_rank_behind(slurm):
    job = Job(command=["salloc", "-n", "2", "-O", CAPSTAN, "launch", "--grace", "3", "--no_python", "/bin/sh", "-c",
                       "setsid sleep 600 & sleep 601"], env=slurm.env, cwd=slurm.folder)
    try:
        assert wait_for(lambda: sum(p.startswith("sleep") for p in job.processes().values()) >= 4), slurm.logs()
        slurm.run("scancel", "-u", "root")
        job.finish()
        assert job.code != 0
        assert job.wait_until_gone(60), job.processes()
    finally:
        job.kill_rest()
