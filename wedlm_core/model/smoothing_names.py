"""What the option ``smoothing`` may name, and the digest of that. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from wedlm_core.file_digest import file_digest

__all__ = ["SAMPLE", "SMOOTHING_FILE", "smoothing_digest", "smoothing_path"]

SAMPLE = Path(__file__).parent / "smoothing_sample.jsonl"
"""The shipped sample: a JSON string a line."""
SMOOTHING_FILE = "smoothing.safetensors"
"""The file beside the weights that ``smoothing="model"`` names."""


def smoothing_path(setting: str, folder: Path) -> Path | None:
    """The file that the option names; None where it names none.

    Args:
        setting: ``EngineConfig.smoothing``.
        folder: of the model.
    """
    if setting in ("off", "sample"):
        return None
    return folder / SMOOTHING_FILE if setting == "model" else Path(setting).expanduser()


def smoothing_digest(setting: str, folder: Path) -> str:
    """A hash of what the option names; empty for "off". Of a file its content, wherever it lies."""
    if setting == "off":
        return ""
    path = smoothing_path(setting, folder) or SAMPLE
    return f"{'sample ' * (path == SAMPLE)}{file_digest(path) if path.is_file() else 'none'}"
