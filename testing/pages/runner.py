"""Runs the blocks of a page in a folder of its own, in order, as a reader would type them.

Each block of shell commands is a ``bash -e`` of its own; the Python blocks of a page share one session. All of it
begins in the page's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from testing.pages.blocks import Block
from testing.pages.settings import check_settings
from testing.repository import ROOT

__all__ = ["BlockFailed", "PageRunner", "differences"]

_SHOWN = 3000


class BlockFailed(AssertionError):  # noqa: N818  # a failed check of a page, not an error of a program
    """A block ended with an error, or printed something else than its page says."""


class PageRunner:
    """Runs blocks; a context manager that ends the Python session.

    Args:
        folder: where the blocks run.
        environment: variables in place of this process's.
        timeout: seconds for each block of shell commands.
        on_run: called with each block that ran and what it printed.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        timeout: float = 240,
        on_run: Callable[[Block, str], None] = lambda block, printed: None,
    ) -> None:
        self._folder = folder
        self._timeout = timeout
        self._on_run = on_run
        self._environment = dict(os.environ if environment is None else environment) | {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self._session: subprocess.Popen[str] | None = None
        self._printed = folder.with_name(folder.name + ".printed")

    def __enter__(self) -> PageRunner:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the Python session."""
        if self._session is not None:
            self._session.communicate(timeout=60)

    def run(self, blocks: list[Block]) -> None:
        """Run a page.

        Raises:
            BlockFailed: the first block that fails, with page, line and what it printed.
        """
        printed = ""
        for block in blocks:
            if block.use == "file":
                self._write(block)
            elif block.use == "settings":
                check_settings(block.code)
            elif block.use == "run":
                printed = self._python(block) if block.language == "python" else self._shell(block)
                self._on_run(block, printed)
            elif block.use == "output":
                wrong = differences(block.code, printed)
                if wrong:
                    raise BlockFailed(f"{block.place}: not printed: {wrong}; printed was:\n{printed[-_SHOWN:]}")

    def _write(self, block: Block) -> None:
        file = self._folder / str(block.title)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.code, encoding="utf-8")

    def _shell(self, block: Block) -> str:
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block.code], cwd=self._folder, env=self._environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=self._timeout,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise BlockFailed(f"{block.place}: status {done.returncode}:\n{done.stdout[-_SHOWN:]}")
        return done.stdout

    def _python(self, block: Block) -> str:
        if self._session is None:
            self._session = subprocess.Popen(
                [sys.executable, "-m", "testing.pages.session"], cwd=self._folder, env=self._environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._session.stdin is not None
        assert self._session.stdout is not None
        self._printed.write_text("")
        asked = {"code": "\n" * (block.line - 1) + block.code, "name": block.page.name, "output": str(self._printed)}
        self._session.stdin.write(json.dumps(asked) + "\n")
        self._session.stdin.flush()
        answer = self._session.stdout.readline()
        printed = self._printed.read_text(errors="replace")
        if not answer:
            raise BlockFailed(f"{block.place}: the Python session ended:\n{printed[-_SHOWN:]}")
        error = json.loads(answer)["error"]
        if error:
            raise BlockFailed(f"{block.place}: {printed[-_SHOWN:]}\n{error}")
        return printed


def differences(expected: str, printed: str) -> list[str]:
    """Lines of ``expected`` that are not found in ``printed`` in this order; ``...`` stands for anything.

    White space at the ends of lines does not count. A line has to be printed whole, but for its ``...``.
    """
    lines = [line.strip() for line in printed.replace("\r", "\n").splitlines()]
    missing = []
    for wanted in (line.strip() for line in expected.splitlines()):
        if wanted in ("", "..."):
            continue
        at = next((number for number, line in enumerate(lines) if _matches(wanted, line)), None)
        if at is None:
            missing.append(wanted)
        else:
            lines = lines[at + 1 :]
    return missing


def _matches(wanted: str, line: str) -> bool:
    first, *rest = wanted.split("...")
    if not rest:
        return wanted == line
    if not line.startswith(first):
        return False
    at = len(first)
    for piece in rest[:-1]:
        found = line.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return line[at:].endswith(rest[-1])
