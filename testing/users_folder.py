"""A project folder of a user's, with a ``pipeline.py`` and a ``jobs/`` of their own, and programs that run in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from testing.repository import ROOT

MODULES = {
    "pipeline": "def clean(text):\n    return text.strip()\n",
    "jobs/__init__": "OWNER = 'the user'\n",
    "wedlm_core": "OWNER = 'the user'\n",
}
"""The contents of the user's modules, by their file without suffix."""


def make_folder(folder: Path, *modules: str) -> Path:
    """The folder with these of :data:`MODULES`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in modules:
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(MODULES[name], encoding="utf-8")
    return folder


def run_python(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None, paths: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Python with the packages of this checkout as if they were installed, started in a folder.

    Args:
        folder: the working folder, which Python's own rules put first on the path for ``-c`` and ``-m``.
        arguments: of the interpreter.
        environment: more variables.
        paths: folders in front of the checkout on ``PYTHONPATH``.
    """
    path = os.pathsep.join((*paths, str(ROOT)))
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
