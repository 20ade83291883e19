"""Check that the pinned Triton is the version that the pinned torch needs on a GPU machine.

    python -m testing.torch_pair          # asks the package index for the metadata of torch's CUDA build

The CPU build of torch does not require Triton, so a CPU machine installs any pair. The CUDA build requires one exact
version: with another pin, installing on a GPU machine fails, and tests on CPU would use a compiler that no GPU machine
has.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"

TRITON_OF_TORCH: Mapping[str, str] = {
    "2.11.0": "3.6.0",
    "2.12.1": "3.7.1",
    "2.13.0": "3.7.1",
    "2.14.1": "3.8.0",
    "2.15.0": "3.9.0",
}
"""``{torch: triton}`` as required by torch's CUDA builds for Linux: used if no metadata is available."""

_SECONDS = 120  # time limit for the package index


def release(version: str) -> str:
    """A version without its local part: ``"2.13.0+cpu"`` is ``"2.13.0"``."""
    return version.partition("+")[0]


def pins(text: str) -> dict[str, str]:
    """``{package: version}`` of the lines ``package==version``."""
    return {name.lower(): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE)}


def triton_required(requirements: Iterable[str]) -> str | None:
    """The version in a ``Requires-Dist`` line such as ``triton==3.7.1; platform_system == "Linux"``; None if none."""
    for line in requirements:
        if found := re.match(r"triton\s*\(?==\s*([\w.]+)", line):
            return found.group(1)
    return None


def installed_requirements() -> list[str]:
    """``Requires-Dist`` of the torch that is installed here."""
    return importlib.metadata.requires("torch") or []


def fault(torch: str, triton: str, requirements: Iterable[str] = ()) -> str | None:
    """Why two versions do not belong together; None if they do.

    Args:
        torch: version, with or without a local part.
        triton: version.
        requirements: ``Requires-Dist`` of that torch; if it does not name Triton, the table decides.
    """
    needed = triton_required(requirements) or TRITON_OF_TORCH.get(release(torch))
    if needed is None:
        known = ", ".join(TRITON_OF_TORCH)
        return f"torch={release(torch)!r}: the Triton of torch {known} is known. Add this torch to TRITON_OF_TORCH."
    if triton != needed:
        return f"triton={triton!r}: torch {release(torch)} for CUDA requires {needed}. Pin triton=={needed}."
    return None


def index_requirements(torch: str) -> list[str]:
    """``Requires-Dist`` of torch's CUDA build, from the package index. Nothing is installed.

    Raises:
        OSError: the index cannot be reached, or pip does not answer in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        # "===" compares the text: builds with a local part, such as +cpu, are not taken.
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet",
                   "--only-binary=:all:", "--report", str(report), f"torch==={release(torch)}"]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"no answer in {_SECONDS} s") from error
        if done.returncode != 0 or not report.is_file():
            raise OSError((done.stderr.strip() or "pip wrote no report").splitlines()[-1])
        (found,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    return list(found["metadata"].get("requires_dist", []))


def main() -> int:
    """Check the pins; 0 if they belong together, else 1. The output says whether the index or the table decided."""
    pinned = pins(CONSTRAINTS.read_text(encoding="utf-8"))
    try:
        requirements, source = index_requirements(pinned["torch"]), "the metadata of torch's CUDA build"
        if triton_required(requirements) is None:
            source = "the table: the build on the package index does not list Triton"
    except OSError as error:
        requirements, source = [], f"the table: the package index gave no metadata ({error})"
    wrong = fault(pinned["torch"], pinned["triton"], requirements)
    print(wrong or f"torch {pinned['torch']} and triton {pinned['triton']} belong together", f"[by {source}]")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
