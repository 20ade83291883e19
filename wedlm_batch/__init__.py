"""All public names of WeDLM Batch, whatever modules of your own are called: ``import wedlm_batch as wb``.

``wb.run``, ``wb.LLM``, ``wb.SamplingParams`` and every other public name of ``pipeline`` and ``wedlm_core``;
``wb.pipeline``, ``wb.wedlm_core`` and ``wb.jobs`` are the packages. A ``pipeline.py`` or ``jobs/`` of yours hides ours
from a plain ``import pipeline``, never from here (:mod:`wedlm_base.names`). A name is imported on its first use, so
importing this package takes milliseconds.
"""

from __future__ import annotations

from wedlm_base import version

TYPE_CHECKING = False  # importing typing for it would take most of this package's import
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    import jobs as jobs
    import pipeline as pipeline
    import wedlm_core as wedlm_core
    from pipeline import *  # noqa: F403
    from wedlm_core import *  # type: ignore[assignment]  # noqa: F403  # ConfigError: see _SOURCES


__version__ = version.VERSION

_SOURCES = ("wedlm_core", "pipeline")
"""Where public names come from. ``ConfigError`` is in both; the first one's is the base class of the other."""


def _imported(name: str) -> Any:
    if name == "__all__":  # without the packages: `import *` must not overwrite a `pipeline` of the user's
        from wedlm_base.names import load

        return sorted({public for package in _SOURCES for public in load(package).__all__})
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wedlm_base.names import PACKAGES, load

    if name in PACKAGES:
        return load(name)
    for package in map(load, _SOURCES):
        if name in package.__all__:
            return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=_this())


if not TYPE_CHECKING:  # a type checker would take any name for a member, also a misspelt one
    __getattr__ = _imported


def __dir__() -> list[str]:
    from wedlm_base.names import PACKAGES

    return sorted({*PACKAGES, "__version__", *_imported("__all__")})


def _this() -> ModuleType:
    import sys

    return sys.modules[__name__]
