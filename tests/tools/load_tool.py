"""Imports a script of tools/ as a module."""

import importlib.util
import os
import sys
from pathlib import Path

SOURCE = Path(os.environ["CAPSTAN_SOURCE"])


def load_tool(name):
    spec = importlib.util.spec_from_file_location(f"capstan_tools_{name}", SOURCE / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
