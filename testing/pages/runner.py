"""Runs the blocks of a page in a folder of its own, in order, as a reader would type them.

A page has a process of its own, ``python -m testing.pages.runner PAGE``, where Sybil runs its Python blocks in one
namespace. Each block of shell commands is a ``bash -e``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator

from testing.pages.blocks import Block, regions_of
from testing.pages.settings import check_settings
from testing.repository import ROOT

_SHOWN = 3000
_DONE = "runs as written"


class BlockFailed(AssertionError):  # noqa: N818  # a failed check of a page, not an error of a program
    """A block ended with an error, or printed something else than its page says."""


def run_page(page: Path, folder: Path, environment: Mapping[str, str] | None = None, timeout: float = 600) -> str:
    """Run a page in a folder and return its blocks' places and output.

    Args:
        page: of the documentation.
        folder: where the blocks run.
        environment: variables in place of this process's.
        timeout: seconds for the page.

    Raises:
        BlockFailed: for the first block that fails, with page, line and output.
    """
    own = dict(os.environ if environment is None else environment) | {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "testing.pages.runner", str(page.resolve())], cwd=folder, env=own, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False,
    )  # fmt: skip
    if done.returncode or not done.stdout.endswith(f"{_DONE}\n"):
        raise BlockFailed(f"{page.name}: status {done.returncode}:\n{done.stdout[-_SHOWN:]}")
    return done.stdout


class _Page:
    """Evaluates the blocks of a page in the present folder."""

    def __init__(self) -> None:
        self._printed = ""
        self._python = PythonEvaluator()

    def regions(self, document: Document) -> Iterator[Region]:
        """The parser for Sybil: every region, with its evaluator."""
        for region, block in regions_of(document):
            region.parsed = region.lexemes["source"]
            region.evaluator = lambda example, block=block: self._evaluate(example, block)
            yield region

    def _evaluate(self, example: Example, block: Block) -> None:
        if block.use == "file":
            file = Path(str(block.title))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.code, encoding="utf-8")
        elif block.use == "settings":
            check_settings(block.code)
        elif block.use == "run":
            with tempfile.TemporaryFile("w+", errors="replace") as output:
                try:
                    with _printing_to(output.fileno()):
                        self._run(example, block)
                finally:
                    output.seek(0)
                    self._printed = output.read()
                    print(f"--- {block.place}\n{self._printed}", flush=True)
        elif block.use == "output":
            wrong = differences(block.code, self._printed)
            if wrong:
                raise BlockFailed(f"{block.place}: not printed: {wrong}; printed was:\n{self._printed[-_SHOWN:]}")

    def _run(self, example: Example, block: Block) -> None:
        if block.language == "bash":
            command = ["bash", "-e", "-o", "pipefail", "-c", block.code]
            status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
            if status:
                raise BlockFailed(f"{block.place}: status {status}")
            return
        try:
            self._python(example)
        except SystemExit as ended:
            raise BlockFailed(f"{block.place}: SystemExit({ended.code!r})") from ended


@contextmanager
def _printing_to(descriptor: int) -> Iterator[None]:
    """Send the output of this process, and of its children, to a file."""
    saved = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(descriptor, number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip((1, 2), saved, strict=True):
            os.dup2(old, number)
            os.close(old)


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


def _main(page: str) -> None:
    document = Document.parse(page, _Page().regions)
    document.namespace["__name__"] = "__main__"
    for example in document.examples():
        example.evaluate()
    print(_DONE)


if __name__ == "__main__":
    _main(sys.argv[1])
