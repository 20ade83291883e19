"""Where the repository is, for what starts its commands or reads its files."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ROOT"]

ROOT = Path(__file__).resolve().parents[1]
