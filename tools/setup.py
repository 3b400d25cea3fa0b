#!/usr/bin/env python3
"""Brings a fresh machine to where the build can start: system packages first, then .venv.

    python3 tools/setup.py [--section build --section test] [--cuda]

Each step leaves a stamp, a hash of its inputs, so that a second call does nothing. Only the standard
library is used: this runs before anything is installed.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PACKAGES = ROOT / "tools" / "packages.txt"
LOCK = ROOT / "requirements.lock"
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks it before a package may start a service
OLDEST_PYTHON = (3, 10)


class SetupError(Exception):
    pass


def read_section(path, section):
    """The lines between `# section: NAME` and the next section, without comments."""
    lines, inside = [], False
    for line in path.read_text().splitlines():
        if line.startswith("# section:"):
            inside = line.split(":", 1)[1].strip() == section
        elif inside and line.strip() and not line.startswith("#"):
            lines.append(line.strip())
    if not lines:
        raise SetupError(f"{path}: there is no section '{section}'")
    return lines


def fingerprint(*parts):
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Stamp:
    """Remembers in .venv that a step was done with exactly these inputs."""

    def __init__(self, name, key):
        self.path, self.key = VENV / "stamps" / name, key

    def current(self):
        return self.path.exists() and self.path.read_text() == self.key

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(self.key)


def missing_packages(names):
    if not shutil.which("dpkg-query"):
        raise SetupError(
            "this machine has no dpkg, so packages cannot be installed by name.\n"
            f"  fix: install the equivalents of: {' '.join(names)}\n"
            "       then: make build SETUP=none PYTHON=/path/to/a/python3 that has torch")
    found = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *names],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    installed = {line.split()[0] for line in found.splitlines() if line.endswith(" installed")}
    return [name for name in names if name not in installed]


def root_prefix(names):
    """What to put before apt-get: nothing for root, sudo where it works."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo"):
        silent = subprocess.run(["sudo", "-n", "true"], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL).returncode == 0
        if silent or sys.stdin.isatty():
            return ["sudo"]
    raise SetupError(
        "system packages are missing, and this user is neither root nor able to use sudo.\n"
        "  fix: ask for this command to be run once, then call make again:\n"
        f"       apt-get update && apt-get install --no-install-recommends -y {' '.join(names)}")


@contextlib.contextmanager
def no_service_starts(prefix):
    """While apt runs, packages must not start their daemons (sshd, slurmd): the tests start their own."""
    if POLICY.exists():  # the administrator has a rule already: keep it
        yield
        return
    subprocess.run([*prefix, "sh", "-c", f"printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}"],
                   check=True)
    try:
        yield
    finally:
        subprocess.run([*prefix, "rm", "-f", str(POLICY)], check=True)


def disable_units(prefix, names):
    """A daemon that came with a package we installed must not come up at the next boot either."""
    if not shutil.which("systemctl"):
        return
    files = subprocess.run(["dpkg-query", "-L", *names], stdout=subprocess.PIPE, text=True).stdout.split()
    units = sorted({Path(f).name for f in files if "/systemd/system/" in f and f.endswith((".service", ".socket"))
                    and "@" not in f})
    if units:
        subprocess.run([*prefix, "systemctl", "disable", "--quiet", *units], stderr=subprocess.DEVNULL)


def install_packages(section):
    names = read_section(PACKAGES, section)
    stamp = Stamp(f"packages-{section}", fingerprint(*names))
    if stamp.current():
        return
    missing = missing_packages(names)
    if missing:
        prefix = root_prefix(missing)
        print(f"setup: installing system packages: {' '.join(missing)}", flush=True)
        apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq"]
        with no_service_starts(prefix):
            run([*apt, "update"])
            run([*apt, "install", "--no-install-recommends", "-y", *missing])
        disable_units(prefix, missing)
    stamp.write()


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SetupError(f"this command failed with exit code {done.returncode}:\n  {' '.join(command)}\n"
                         + "".join(f"  | {line}\n" for line in done.stdout.splitlines()[-20:]))


def make_venv():
    python = VENV / "bin" / "python"
    stamp = Stamp("python", fingerprint(sys.executable, sys.version))
    if stamp.current() and python.exists():
        return
    kept = [p for p in (VENV / "stamps").glob("packages-*")]
    contents = {p.name: p.read_text() for p in kept}
    print(f"setup: creating .venv with Python {sys.version.split()[0]}", flush=True)
    run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    stamp.write()
    for name, text in contents.items():  # --clear took them along; the packages are still there
        (VENV / "stamps" / name).write_text(text)


def install_wheels(section):
    lines = read_section(LOCK, section)
    stamp = Stamp(f"wheels-{section}", fingerprint(*lines))
    if stamp.current():
        return
    print(f"setup: installing {len(lines)} pinned wheels into .venv (section {section}; some are large)", flush=True)
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps",
               "--disable-pip-version-check", "--requirement", "/dev/stdin"]
    done = subprocess.run(command, input="\n".join(lines), text=True)
    if done.returncode != 0:
        raise SetupError(f"pip could not install section '{section}' of {LOCK.name} (its message is above).\n"
                         "  fix: check the network and the free disk space (8 GB), then call make again;\n"
                         "       or SETUP=none PYTHON=/path/to/a/python3 that has torch")
    stamp.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--section", action="append", default=[], help="section of tools/packages.txt")
    parser.add_argument("--cuda", action="store_true", help="also the CUDA compiler from wheels")
    options = parser.parse_args()
    if sys.version_info < OLDEST_PYTHON:
        raise SetupError(f"Python {sys.version.split()[0]} is too old, 3.10 or newer is needed.\n"
                         "  fix: make PYTHON=/path/to/a/newer/python3")
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "setup.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two calls at once: the second finds the work done
        for section in options.section or ["build"]:
            install_packages(section)
        make_venv()
        for section in ["base"] + (["cuda"] if options.cuda else []):
            install_wheels(section)


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"setup: {error}")
