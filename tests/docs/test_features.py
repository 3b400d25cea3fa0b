"""What README says about features agrees with the program's own list."""

import os
import re
import subprocess
from pathlib import Path

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])


def features():
    """{name: status}, both in lower case."""
    table = subprocess.run([Path(os.environ["CAPSTAN_BIN"]) / "capstan", "config", "features"], check=True,
                           capture_output=True, text=True, timeout=60).stdout
    rows = [[cell.strip().lower() for cell in line.split("|")] for line in table.splitlines()[2:]]
    return {row[1]: row[2] for row in rows}


def missing_in_readme():
    """["tensor", ..., "elastic training"]: the items of the sentence "Not yet available, among others: ..."."""
    sentence = re.search(r"Not yet available, among others: (.*?)\.\s", (SOURCE / "README.md").read_text(), re.S)[1]
    return [item.removeprefix("and ") for item in re.split(r", | and (?=expert)", " ".join(sentence.split()).lower())]


def test_what_readme_calls_missing_is_refused():
    status = features()
    items = missing_in_readme()
    assert {"sequence", "expert parallelism", "elastic training"} <= set(items)
    for item in items:
        found = {name: state for name, state in status.items() if item in name}
        assert found and set(found.values()) == {"refused"}, f"README calls {item!r} missing; the program says {found}"
