"""No code of the repository unpickles data of others: ``torch.load`` is called with ``weights_only=True`` only."""

from __future__ import annotations

import ast
from pathlib import Path

from testing.repository import ROOT

READERS = {
    "dill.loads",
    "joblib.load",
    "pickle.Unpickler",
    "pickle.load",
    "pickle.loads",
    "torch.jit.load",
    "torch.load",
}
OWN = {
    "pipeline/prompts/limited_process.py",
    "pipeline/worker/row_isolation.py",
}
"""Files that read only the bytes that a process of the same run has pickled."""


def loads_of(path: Path) -> list[ast.Call]:
    """Calls of functions that can unpickle."""
    text = path.read_text(encoding="utf-8")
    if not any(reader in text for reader in READERS):
        return []
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) in READERS]


def test_torch_load_reads_weights_only_everywhere() -> None:
    found = []
    for package in ("wedlm_batch", "wedlm_base", "wedlm_core", "pipeline", "jobs", "benchmarks", "testing"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for call in loads_of(path):
                only = {k.arg: getattr(k.value, "value", None) for k in call.keywords}.get("weights_only")
                found.append((f"{path.relative_to(ROOT)}:{call.lineno}", ast.unparse(call.func), only))
    assert found, "the search finds them"
    others = [f for f in found if f[1] != "torch.load" or f[2] is not True]
    assert {f[0].partition(":")[0] for f in others} <= OWN
