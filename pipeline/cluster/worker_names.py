"""Whether worker processes find our packages, under the names by which this process pickles what it sends them.

A worker looks for modules in the driver's working folder and in the session's ``working_dir`` before it looks at what
is installed. Another module of the same name there would make every task fail at its first import, with an error that
does not say why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wedlm_base.names import MARKS, private_packages

_NEEDED = ("wedlm_base", "wedlm_batch", "pipeline", "wedlm_core")

__all__ = ["Found", "finder", "marks_of", "why_not"]

Found = Mapping[str, str | None]
"""Place of the module that a worker finds, for each name that is not our package; None where it finds none."""


def marks_of(module: str) -> dict[str, str]:
    """The file (:data:`wedlm_base.names.MARKS`) by which a worker knows each package that ``module`` needs there."""
    top, _, rest = module.partition(".")
    private = private_packages(f"{top}.{rest.partition('.')[0]}") if top == "wedlm_batch" else ()
    return {name: MARKS[name] for name in _NEEDED if name not in private}


def finder() -> Callable[[Mapping[str, str]], Found]:
    """The function that looks for packages with these marks in a worker; it is pickled whole, as it knows no module."""

    def find(marks: Mapping[str, str]) -> Found:
        import importlib.util
        import os

        found: dict[str, str | None] = {}
        for name, mark in marks.items():
            spec = importlib.util.find_spec(name)
            folders = [] if spec is None else list(spec.submodule_search_locations or ())
            if not any(os.path.isfile(os.path.join(folder, mark)) for folder in folders):
                found[name] = None if spec is None else spec.origin or next(iter(folders), None)
        return found

    return find


def why_not(found: Found) -> str | None:
    """What is in the way, with the remedy; None if nothing is."""
    for name, place in found.items():
        if place is None:
            return (
                f"worker processes of this Ray session do not find our package {name!r}. Install wedlm-batch on every "
                "node, in the Python environment of the session."
            )
        return (
            f"worker processes of this Ray session find {place} where our package {name!r} is needed. Start from "
            "`wedlm-batch` or `import wedlm_batch as wb` in the folder that has it, which avoid the name; or rename "
            "it, or leave it out of the session's working_dir."
        )
    return None
