"""Loads our packages under a private namespace, next to modules of the user's with the same names.

The files are the installed ones, and their compiled code is the cached one. Only the meaning of ``import pipeline`` in
them is changed: each module gets builtins of its own, whose ``__import__`` looks for our packages in the namespace. So
classes and functions say ``wedlm_batch.beside_pipeline.pipeline...`` where they live; a Ray worker that unpickles them
imports this namespace in turn, whatever its path holds.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from wedlm_base.names import namespace_of, private_packages

_HOME = str(Path(__file__).resolve().parent.parent)
_PREFIX = namespace_of("")


def open_namespace() -> list[str]:
    """Let the import system find our packages in the namespaces; their search path, for ``__path__``."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return [_HOME]


class _Finder(MetaPathFinder):
    """Finds modules below ``wedlm_batch.beside_...``, and no other."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX) or fullname.count(".") < 2:
            return None
        namespace = ".".join(fullname.split(".")[:2])
        if fullname.split(".")[2] not in private_packages(namespace):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Runs a module with :func:`_builtins` in the place of Python's."""

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = _builtins(".".join(self.name.split(".")[:2]))
        super().exec_module(module)


@functools.cache
def _builtins(namespace: str) -> dict[str, Any]:
    """Python's builtins with an ``__import__`` that knows a namespace; one dict for all its modules."""
    private = private_packages(namespace)

    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top not in private:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if fromlist:
            return builtins.__import__(f"{namespace}.{name}", globals, locals, fromlist, 0)
        importlib.import_module(f"{namespace}.{name}")
        return sys.modules[f"{namespace}.{top}"]  # `import pipeline.x` binds the name `pipeline`

    return {**vars(builtins), "__import__": import_}
