"""The API reference: a page for each kind of public name, made from the names themselves and their docstrings.

Names and their modules are read from the source of the two public packages, so making the pages imports neither torch
nor Ray.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

KINDS: Mapping[str, str] = {
    "functions": "Functions: jobs over a table, and reading their outputs",
    "llm": "LLM: prompts in, text out, in this process",
    "settings": "Settings",
    "results": "Results",
    "errors": "Errors",
}
"""Page -> its title."""
_ABOUT: Mapping[str, str] = {
    "functions": "Functions that run a job, look at it and read its rows.",
    "llm": "The engine without rows and files, for a notebook or a script, as vLLM's `LLM`.",
    "settings": "Every setting, with meaning, range and default. YAML and `--set` have the same names.",
    "results": "Results of functions. A row's statistics are explained in [columns](columns.md).",
    "errors": "Exceptions. Each message names the value, the rule and the remedy. `PipelineError` is the\n"
    "base class of the errors of jobs, `WeDLMError` that of the engine's.",
}


def homes(root: Path) -> dict[str, str]:
    """Module of each public name of ``wedlm_batch``; where both packages have a name, the engine's counts."""
    found: dict[str, str] = {}
    for package in ("pipeline", "wedlm_core"):
        tree = ast.parse((root / package / "__init__.py").read_text(encoding="utf-8"))
        modules = dict(_imported(tree))
        found |= {name: modules[name] for name in _listed(tree)}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _listed(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "__all__" for target in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    raise ValueError("no __all__")


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((alias.name, node.module) for alias in node.names)


def kind_of(name: str, module: str) -> str:
    """The page that a name is on."""
    if name.endswith("Error"):
        return "errors"
    if name[0].islower():
        return "functions"
    if name.endswith(("Config", "Params", "Range", "Strategy")) or module.startswith("pipeline.settings."):
        return "settings"
    return "llm" if module in ("wedlm_core.llm", "wedlm_core.types") else "results"


def reference_pages(root: Path) -> dict[str, str]:
    """Pages of the reference: path on the site -> Markdown, with a directive of mkdocstrings for each name."""
    lines = {kind: [f"# {title}", "", _ABOUT[kind]] for kind, title in KINDS.items()}
    for name, module in homes(root).items():
        lines[kind_of(name, module)] += ["", f"::: {module}.{name}", "    options:", f"      heading: wb.{name}",
                                         f"      toc_label: {name}"]  # fmt: skip
    return {f"reference/{kind}.md": "\n".join(text) + "\n" for kind, text in lines.items()}
