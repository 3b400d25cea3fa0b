"""The processes below a process."""

from pathlib import Path


def descendants(pid):
    """With the process itself."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # it has ended meanwhile
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found
