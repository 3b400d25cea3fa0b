"""The command line program `capstan`, which comes with the package or lies in a build tree."""

import os
import shutil
import sys
from pathlib import Path

from capstan.errors import ConfigError


def find():
    """Its path. Looked for: CAPSTAN_BIN, the package's own folder, the build tree around it, PATH."""
    here = Path(__file__).resolve().parent
    folders = [os.environ.get("CAPSTAN_BIN"), here / "bin", Path(_package_folder()).parent.parent / "bin"]
    for folder in folders:
        if folder and os.access(Path(folder) / "capstan", os.X_OK):
            return str(Path(folder) / "capstan")
    found = shutil.which("capstan")
    if found is None or Path(found).read_bytes()[:2] == b"#!":
        raise ConfigError("the program 'capstan' is not installed", "PATH",
                          "install the package with its programs, or build it and put build/release/bin in PATH")
    return found


def _package_folder():
    # In a build tree the package's files are links; the extension module is not.
    from capstan import _C
    return os.path.dirname(os.path.abspath(_C.__file__))


def run(*words):
    """Becomes `capstan WORDS ...`; scripts run under this very interpreter."""
    program = find()
    os.environ.setdefault("CAPSTAN_PYTHON", sys.executable)
    os.execv(program, [program, *words])


def main():
    run(*sys.argv[1:])
