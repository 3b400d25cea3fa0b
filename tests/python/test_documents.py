"""The Python blocks of the documents run as they stand."""

import os
import re
from pathlib import Path

import pytest
import ranks

SOURCE = Path(os.environ.get("CAPSTAN_SOURCE", Path(__file__).parents[2]))
BLOCKS = [pytest.param(text, id=f"{name}:{number}")
          for name in ("README.md", "docs/python.md", "docs/migrating.md")
          for number, text in enumerate(re.findall(r"^```python\n(.*?)^```", (SOURCE / name).read_text(),
                                                   re.MULTILINE | re.DOTALL))]


def run_block(text):
    exec(compile(text, "<document>", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("text", BLOCKS)
def test_block_runs(text):
    ranks.run(1, run_block, text)
