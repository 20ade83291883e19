"""A virtual environment with the wheel of this checkout, built and installed as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from testing.repository import ROOT

_PACKAGES = ("jobs", "pipeline", "wedlm_base", "wedlm_batch", "wedlm_core")
_FILES = ("LICENSE", "README.md", "pyproject.toml")
_COMPILED = shutil.ignore_patterns("*.pyc", "*.nbi", "*.nbc", "__pycache__")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment. ``folder``: its root."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Where its packages are installed."""
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.folder)}))

    def variables(self) -> dict[str, str]:
        """The variables of a shell with this environment active, and nothing of this checkout."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        return {**kept, "VIRTUAL_ENV": str(self.folder), "PATH": f"{self.folder / 'bin'}{os.pathsep}{kept['PATH']}"}

    def run(
        self, folder: Path, *command: str, timeout: float = 200, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder, with the environment active."""
        return subprocess.run(
            command, cwd=folder, env=self.variables() | variables, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip


def build_wheel(folder: Path) -> Path:
    """Build the sdist of this checkout below ``folder``, and the wheel from it, with the installed setuptools.

    Returns:
        The wheel. The sdist lies next to it.

    Raises:
        RuntimeError: a build failed.
    """
    source = folder / "source"
    source.mkdir()
    for name in _FILES:
        shutil.copy(ROOT / name, source / name)
    for name in _PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=_COMPILED)
    backend = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    _succeeded([sys.executable, "-c", backend], source)
    (sdist,) = folder.glob("*.tar.gz")
    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(sdist))
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path) -> Environment:
    """An environment with the wheel; its dependencies are this interpreter's packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    made = Environment(folder=folder)
    # Not system_site_packages: this interpreter may itself be one of a virtual environment. A line of a .pth file adds
    # a folder after the environment's own, without the .pth files in it (one of them may lead to this checkout).
    (made.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    _pip("--python", str(made.python), "install", "--no-warn-script-location", str(wheel))
    return made


def _pip(*arguments: str) -> None:
    # The command is in front of these options, or an option of pip and its value are in front of that.
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps", "--no-index"]
    _succeeded([*command, "--disable-pip-version-check"], None)


def _succeeded(command: list[str], folder: Path | None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: {done.stderr}")
