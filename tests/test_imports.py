"""Who may import whom: held over the syntax trees of the whole repository, and in fresh interpreters."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("wedlm_core", "pipeline", "jobs")
RAY_AND_ARROW = ("ray", "pyarrow", "datasets")

# In the pipeline, these alone know wedlm_core, and of them the loading of an engine alone anything that needs torch.
KNOWS_CORE = ("pipeline.codec", "pipeline.actors")
TORCH_FREE_CORE = (
    "wedlm_core.config",
    "wedlm_core.errors",
    "wedlm_core.model.sources",
    "wedlm_core.redaction",
    "wedlm_core.seeds",
    "wedlm_core.templating",
    "wedlm_core.tokenizer",
    "wedlm_core.types",
)


def modules(package: str) -> list[tuple[str, Path]]:
    """Dotted name and file of every module of a package."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def imports(path: Path, *, for_types: bool = False) -> set[str]:
    """Modules that a file imports anywhere in it; those under ``if TYPE_CHECKING`` only where asked for."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not for_types:
            skipped |= {inner for child in node.body for inner in ast.walk(child)}
    return {name for node in ast.walk(tree) if node not in skipped for name in _names(node)}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        assert node.module is not None
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def under(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of ``packages`` or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


CASES = [(name, path) for package in PACKAGES for name, path in modules(package)]


def test_the_walk_finds_the_packages() -> None:
    names = {name for name, _ in CASES}
    assert {"wedlm_core.llm", "pipeline.running", "jobs.generate"} <= names
    assert "wedlm_core.llm.LLM" in imports(ROOT / "pipeline/actors/loading.py"), "imports in functions count"


@pytest.mark.parametrize(("name", "path"), CASES, ids=[name for name, _ in CASES])
def test_imports_point_one_way(name: str, path: Path) -> None:
    every = imports(path, for_types=True)
    forbidden: tuple[str, ...] = ("tests", "benchmarks", "testing")
    if under(name, "wedlm_core"):
        forbidden += ("pipeline", "jobs", *RAY_AND_ARROW)
    if under(name, "pipeline"):
        forbidden += ("jobs",)
    if under(name, "wedlm_core.training"):
        forbidden += ("wedlm_core.engine",)
    if under(name, "wedlm_core.engine"):
        forbidden += ("wedlm_core.training",)
    wrong = sorted(target for target in every if under(target, *forbidden))
    assert not wrong, f"{name} imports {wrong}"


@pytest.mark.parametrize(("name", "path"), modules("testing"), ids=[name for name, _ in modules("testing")])
def test_the_shared_tools_know_the_core_alone(name: str, path: Path) -> None:
    wrong = sorted(t for t in imports(path, for_types=True) if under(t, "tests", "benchmarks", "pipeline", "jobs"))
    assert not wrong, f"{name} imports {wrong}"


@pytest.mark.parametrize(("name", "path"), modules("pipeline"), ids=[name for name, _ in modules("pipeline")])
def test_the_pipeline_knows_the_core_at_its_border_only(name: str, path: Path) -> None:
    every = imports(path)
    core = {target for target in every if under(target, "wedlm_core")}
    if not under(name, *KNOWS_CORE):
        assert not core, f"{name} imports {sorted(core)}: take it from pipeline.codec"
    if name != "pipeline.actors.loading":
        assert not [t for t in every if under(t, "torch")], f"{name} imports torch"
        heavy = [t for t in core if not under(t, *TORCH_FREE_CORE)]
        assert not heavy, f"{name} imports {heavy}, which may need torch"


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_core_brings_neither_ray_nor_arrow_nor_cuda() -> None:
    code = """
import sys, wedlm_core
assert not {'ray', 'pyarrow', 'datasets', 'torch'} & set(sys.modules), 'the package itself is light'
wedlm_core.LLM
assert not {'ray', 'pyarrow', 'datasets'} & set(sys.modules)
import torch
print(torch.cuda.is_initialized())
"""
    assert fresh(code) == "False"


def test_importing_the_pipeline_brings_neither_torch_nor_ray() -> None:
    code = """
import sys, pipeline
for name in pipeline.__all__:
    getattr(pipeline, name)
print(sorted({'torch', 'ray', 'transformers', 'datasets', 'pandas'} & set(sys.modules)))
"""
    assert fresh(code) == "[]"


@pytest.mark.parametrize("name", TORCH_FREE_CORE)
def test_the_leaves_that_the_pipeline_uses_are_free_of_torch(name: str) -> None:
    assert fresh(f"import sys, {name}; print('torch' in sys.modules)") == "False"
