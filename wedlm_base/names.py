"""The names of our packages where modules of the user's own are called like them.

The user's folder comes before the installed packages on Python's path, so ``import pipeline`` finds a ``pipeline.py``
or ``jobs/`` in it. Both are needed in one process: theirs under its name, ours under another one. Where nothing hides
ours, it is imported under its plain name, so that ``import pipeline`` and ``wedlm_batch`` give the same objects. Else
:mod:`wedlm_base.private` loads it as a part of ``wedlm_batch.beside_pipeline``.

Pickles for a worker name modules as they are called here, and a worker looks into the driver's working folder first. A
package that only the workers would not find counts as hidden, therefore. ``wedlm_batch`` and ``wedlm_base`` themselves
have to be found there: no module of the user's may have these names.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

PACKAGES = ("jobs", "pipeline", "wedlm_core")
"""From the top down: each imports those after it."""

MARKS: Mapping[str, str] = {
    "jobs": "recipes/own.yaml",
    "pipeline": "cluster/generate_actor.py",
    "wedlm_core": "tiny/config.json",
    "wedlm_batch": "beside_pipeline.py",
    "wedlm_base": "names.py",
}
"""A file in each of our packages that no other package of this name has: a folder with it is a copy of ours."""

logger = logging.getLogger(__name__)


def load(package: str) -> ModuleType:
    """Our package of this name, even where a module of the user's has the name. Names the hiding module once."""
    for one in PACKAGES[PACKAGES.index(package) :]:
        _warn(one)
    return importlib.import_module(_names()[package])


def namespace_of(package: str) -> str:
    """The module that holds our packages from the top down to this one where a module of the user's hides it."""
    return f"wedlm_batch.beside_{package}"


def private_packages(namespace: str) -> tuple[str, ...]:
    """Packages loaded below a namespace: the hidden one and its importers."""
    return PACKAGES[: PACKAGES.index(namespace.partition(".beside_")[2]) + 1]


@functools.cache
def _names() -> Mapping[str, str]:
    """The name of each package's module. Decided once: a process has one copy of each."""
    hidden = [package for package in PACKAGES if hidden_by(package) is not None]
    if not hidden:
        return {package: package for package in PACKAGES}
    namespace = namespace_of(hidden[-1])
    private = private_packages(namespace)
    return {package: f"{namespace}.{package}" if package in private else package for package in PACKAGES}


@functools.cache
def _warn(package: str) -> None:
    ours = _names()[package]
    if ours != package and (place := hidden_by(package)) is not None:
        logger.warning(
            "%s has the name of our package %r. Both work: ours is imported as %s.",
            place, package, ours,
        )  # fmt: skip


def hidden_by(package: str, *, in_workers: bool = True) -> str | None:
    """Place of the module that ``import package`` finds instead of ours; None if it finds ours.

    Args:
        package: one of :data:`PACKAGES`.
        in_workers: look into the working folder too, where Ray's workers look first. They need no ``jobs``.
    """
    if (loaded := sys.modules.get(package)) is not None:
        return None if _is_ours(package, getattr(loaded, "__path__", ())) else _place(loaded.__spec__, loaded)
    found = [_in_working_folder(package)] if in_workers and package != "jobs" else []
    for spec in (*found, importlib.util.find_spec(package)):
        if spec is not None and not _is_ours(package, spec.submodule_search_locations or ()):
            return _place(spec)
    return None


def refuse_hidden(*packages: str) -> None:
    """For modules that import these under their plain names, as ``python -m jobs.generate`` does.

    Raises:
        ImportError: one of them is hidden in this process; the message names the other module.
    """
    for package in packages:
        if (place := hidden_by(package, in_workers=False)) is not None:
            raise ImportError(
                f"{place} hides our package {package!r} here. Use the command `wedlm-batch`, or in Python "
                f"`import wedlm_batch as wb`, which find ours as well; or rename it, or work in another folder."
            )


def _in_working_folder(package: str) -> ModuleSpec | None:
    try:
        folder = os.getcwd()
    except OSError:  # it was removed
        return None
    spec = PathFinder.find_spec(package, [folder])
    # A folder without __init__.py hides nothing: a package further back on the path comes before it.
    return None if spec is None or spec.origin is None else spec


def _is_ours(package: str, folders: Iterable[str]) -> bool:
    return any((Path(folder) / MARKS[package]).is_file() for folder in folders)


def _place(spec: ModuleSpec | None, module: ModuleType | None = None) -> str:
    file = getattr(module, "__file__", None) or (spec.origin if spec is not None else None)
    return str(file or (spec and next(iter(spec.submodule_search_locations or ()), None)) or "a module without a file")
