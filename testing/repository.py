"""The root folder of the repository, to start its commands and read its files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
