"""The values of the option ``smoothing``, and their digests. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from wedlm_core.errors import ConfigError, explain
from wedlm_core.file_digest import file_digest
from wedlm_core.model.checkpoint import opened

SAMPLE = Path(__file__).parent / "smoothing_sample.jsonl"
"""The shipped sample: a JSON string a line."""
SMOOTHING_FILE = "smoothing.safetensors"
"""The file next to the weights that ``smoothing="model"`` names."""
REMEDY = 'Make it with "wedlm-batch smooth", or use "sample".'
"""The remedy for a missing or unreadable file."""


def smoothing_path(setting: str, folder: Path) -> Path | None:
    """The file that the option names; None where it names none."""
    if setting in ("off", "sample"):
        return None
    return folder / SMOOTHING_FILE if setting == "model" else Path(setting).expanduser()


def check_file(path: Path, option: str = "smoothing") -> None:
    """Check that a file is whole, without reading its tensors.

    Raises:
        ConfigError: there is no such file.
        WeightsError: it is no whole safetensors file.
    """
    if not path.is_file():
        raise ConfigError(explain(option, str(path), "no such file", REMEDY))
    opened(path, framework="numpy", what=option, remedy=REMEDY)


def smoothing_digest(setting: str, folder: Path) -> str:
    """A hash of the file that the option names; empty for "off". Of a file its content, wherever it lies."""
    if setting == "off":
        return ""
    path = smoothing_path(setting, folder) or SAMPLE
    return f"{'sample ' * (path == SAMPLE)}{file_digest(path) if path.is_file() else 'none'}"
