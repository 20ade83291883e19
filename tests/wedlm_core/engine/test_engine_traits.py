"""The engine asks strategies and attention backends for their traits, never for a name or a class."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from testing.repository import ROOT
from wedlm_core.attention import backend_names
from wedlm_core.types import Strategy

FILES = sorted((ROOT / "wedlm_core/engine").rglob("*.py"))
LIBRARIES = {"triton"}  # also the name of a package, which is looked for


def asked_for(path: Path) -> Iterator[str]:
    """Names in a module that only traits should have."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known = {*backend_names(), *(strategy.value for strategy in Strategy)} - LIBRARIES
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known:
            yield node.value
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Strategy":
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            kind = ast.unparse(node.args[1])
            if any(word in kind for word in ("Decoding", "Attention", "Plan", "Launch")):
                yield ast.unparse(node)


def test_no_strategy_and_no_backend_is_known_by_name() -> None:
    assert not {path.stem: found for path in FILES if (found := list(asked_for(path)))}
