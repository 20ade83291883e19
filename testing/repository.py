"""The root folder of the repository, to start its commands and read its files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pins() -> dict[str, str]:
    """Package -> version, of the lines of ``constraints.txt``."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return {name.lower(): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE)}
