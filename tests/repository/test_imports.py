"""Who may import whom: one table for all packages, held over the syntax trees and in fresh interpreters; and drawn."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from testing.pages.architecture import PAGE, read_diagram
from testing.repository import ROOT

SHIPPED = ("wedlm_batch", "wedlm_base", "wedlm_core", "pipeline", "jobs")
UNSHIPPED = ("testing", "benchmarks", "tests")

# From the top down. A module belongs to the longest name here that begins its own, and imports modules of that line and
# of lower lines, under TYPE_CHECKING too. The public packages give names of modules below them.
ORDER = (
    "wedlm_batch",
    "jobs",
    "pipeline",
    "pipeline.serving",
    "pipeline.commands",
    "pipeline.cluster",
    "pipeline.worker",
    "pipeline.prompts",
    "pipeline.plan",
    "pipeline.selection",
    "pipeline.commit",
    "pipeline.commit.index",
    "pipeline.sources",
    "pipeline.sinks",
    "pipeline.storage",
    "pipeline.reporting",
    "pipeline.fingerprint",
    "pipeline.config",
    "pipeline.settings",
    "pipeline.schema",
    "pipeline.progress",
    "pipeline.stopping",
    "pipeline.errors",
    "pipeline.layout",
    "pipeline.stages",
    "pipeline.child_process",
    "pipeline.types",
    "pipeline.causes",
    "pipeline.codec",
    "wedlm_core",
    "wedlm_core.llm",
    "wedlm_core.llm_scoring",
    "wedlm_core.llm_inputs",
    "wedlm_core.progress_bar",
    "wedlm_core.training",
    "wedlm_core.engine",
    "wedlm_core.engine.drafting.measure",
    "wedlm_core.engine.drafting.bench",
    "wedlm_core.engine.constrained",
    "wedlm_core.engine.forward",
    "wedlm_core.engine.drafting",
    "wedlm_core.engine.scheduling",
    "wedlm_core.engine.constrained.matching",
    "wedlm_core.decoding",
    "wedlm_core.model",
    "wedlm_core.attention",
    "wedlm_core.kv",
    "wedlm_core.kernels",
    "wedlm_core.grammar",
    "wedlm_core.tokenizer",
    "wedlm_core.messages",
    "wedlm_core.plain_tokenizer",
    "wedlm_core.templating",
    "wedlm_core.seeds",
    "wedlm_core.ordering",
    "wedlm_core.config",
    "wedlm_core.types",
    "wedlm_core.sampling_params",
    "wedlm_core.structured_outputs",
    "wedlm_core.evidence",
    "wedlm_core.statistics",
    "wedlm_core.devices",
    "wedlm_core.fallback",
    "wedlm_core.option_names",
    "wedlm_core.references",
    "wedlm_core.errors",
    "wedlm_core.redaction",
    "wedlm_core.cache",
    "wedlm_core.json_pointer",
    "wedlm_core.host_memory",
    "wedlm_core.file_digest",
    "wedlm_core.checks",
    "wedlm_base",
)

# They name lower modules, and are imported for no name of their own.
PUBLIC = ("wedlm_batch", "pipeline", "wedlm_core")

# Lines of the table that do not know each other, although one is above the other.
STRANGERS = (
    ("wedlm_core.training", "wedlm_core.engine"),
    ("wedlm_core.decoding", "wedlm_core.kv"),
    ("wedlm_core.decoding", "wedlm_core.attention"),
    ("pipeline.commit", "pipeline.sources"),
    ("pipeline.commands.validate", "pipeline.commands.run"),
    ("pipeline.commands.validate", "pipeline.commands.begin"),
)

# Libraries that few know. Everything else of the shipped packages does not import them.
KNOWN_BY: Mapping[str, tuple[str, ...]] = {
    "ray": ("pipeline.cluster",),
    "torch": ("wedlm_core", "pipeline.worker.load_engine", "jobs"),
    "triton": ("wedlm_core.kernels.gpu",),
    "numba": ("wedlm_core.kernels.cpu",),
    "flash_attn": ("wedlm_core.attention.flash",),
    "transformers": ("wedlm_core.tokenizer", "wedlm_core.training", "wedlm_core.model"),
    "pyarrow": ("pipeline", "jobs"),
    "datasets": ("pipeline.sources",),
    "deltalake": ("pipeline.sinks.delta_table",),
    "pyiceberg": ("pipeline.sinks.iceberg_table",),
    "huggingface_hub": ("pipeline.commands.push", "pipeline.commands.hub_commit", "wedlm_core.model.sources"),
    "sqlite3": ("pipeline.commit.index",),
    "duckdb": ("pipeline.selection.expression",),
    "datasketch": ("pipeline.selection.near_duplicates",),
    "s3fs": ("pipeline.storage",),
    "llguidance": ("wedlm_core.grammar", "wedlm_core.engine.constrained"),
    "rich": ("pipeline.progress", "pipeline.commands.summary"),
    "starlette": ("pipeline.serving.app",),
    "uvicorn": ("pipeline.serving.endpoint",),
    "python_multipart": ("pipeline.serving.endpoint",),
    "anyio": ("pipeline.serving.app",),
    "scipy": ("pipeline.commands.scorers",),
    "IPython": ("pipeline.progress",),
    "fsspec": ("pipeline.storage", "pipeline.sources", "wedlm_core.model.sources"),
}

# In the pipeline, these alone know wedlm_core, and of them the loading of an engine alone anything that needs torch.
KNOWS_CORE = ("pipeline.codec", "pipeline.prompts", "pipeline.worker", "pipeline.cluster")
TORCH_FREE_CORE = (
    "wedlm_core.config",
    "wedlm_core.host_memory",
    "wedlm_core.engine.scheduling.admission",
    "wedlm_core.errors",
    "wedlm_core.evidence",
    "wedlm_core.file_digest",
    "wedlm_core.grammar",
    "wedlm_core.json_pointer",
    "wedlm_core.kernels.cpu.kept",
    "wedlm_core.messages",
    "wedlm_core.model.adapter",
    "wedlm_core.model.checkpoint",
    "wedlm_core.model.generation_defaults",
    "wedlm_core.model.checkpoint",
    "wedlm_core.model.memory",
    "wedlm_core.model.smoothing_names",
    "wedlm_core.model.sources",
    "wedlm_core.option_names",
    "wedlm_core.redaction",
    "wedlm_core.references",
    "wedlm_core.sampling_params",
    "wedlm_core.structured_outputs",
    "wedlm_core.seeds",
    "wedlm_core.statistics",
    "wedlm_core.templating",
    "wedlm_core.tokenizer",
    "wedlm_core.types",
)


@cache
def modules() -> Mapping[str, Path]:
    """File of every module of the repository by its dotted name."""
    found = {}
    for package in (*SHIPPED, *UNSHIPPED):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(name: str) -> frozenset[str]:
    """The imports anywhere in a module: modules of the repository whole, anything else as it is written."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    return frozenset(target for node in ast.walk(tree) for target in _targets(node))


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        assert node.module is not None
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in modules() else node.module


def under(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of ``packages`` or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def line_of(name: str) -> int:
    """Where a module stands in the table."""
    while name not in ORDER:
        name = name.rpartition(".")[0]
    return ORDER.index(name)


SHIPPED_MODULES = [name for name in modules() if under(name, *SHIPPED)]


def test_the_walk_finds_the_packages() -> None:
    assert {"wedlm_core.llm", "pipeline.commands.run", "jobs.generate"} <= set(SHIPPED_MODULES)
    assert "wedlm_core.llm" in imports("pipeline.worker.load_engine"), "imports in functions count"
    assert "pipeline.commands.run" in imports("pipeline"), "imports for types count"


def test_every_line_of_the_table_is_a_module_and_every_package_has_a_line() -> None:
    assert set(ORDER) <= set(modules()), f"no such modules: {set(ORDER) - set(modules())}"
    packages = {name for name, path in modules().items() if under(name, *SHIPPED) and path.name == "__init__.py"}
    inside = (
        "wedlm_core.kernels",
        "wedlm_core.decoding",
        "pipeline.sources.formats",
    )  # a layer with rooms of its own
    assert {name for name in packages if not under(name, *inside)} <= set(ORDER)


# One test holds a rule over all modules: a test of its own for each of them took most of the time of this file.


def test_imports_point_down_the_table() -> None:
    wrong = {name: sorted(found) for name in SHIPPED_MODULES if (found := _not_below(name))}
    assert not wrong, "\n".join(f"{name} imports {found}" for name, found in wrong.items())


def _not_below(name: str) -> set[str]:
    """The imports of a module that are not below it in the table, are strangers to it, or do not ship."""
    known = {target for target in imports(name) if under(target, *SHIPPED, *UNSHIPPED)}
    wrong = {target for target in known if under(target, *UNSHIPPED)}
    if name not in PUBLIC:
        wrong |= {target for target in known - wrong if line_of(target) < line_of(name)}
    for above, below in STRANGERS:
        wrong |= {target for target in known if under(name, above) and under(target, below)}
    return wrong


def test_no_module_imports_itself_over_others() -> None:
    graph = {name: {t for t in imports(name) if t in modules()} - {name} - set(PUBLIC) for name in SHIPPED_MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in done:
            for target in graph[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_the_drawing_has_every_package_of_the_table_and_the_arrows_that_no_others_imply() -> None:
    diagram = read_diagram(PAGE.read_text(encoding="utf-8"))
    drawn = [box.package for box in diagram.boxes]
    folders = [line for line in ORDER if (ROOT.joinpath(*line.split(".")) / "__init__.py").exists()]
    assert len(set(drawn)) == len(drawn)
    assert set(folders) <= set(drawn) <= set(ORDER)
    needed = _reduced({edge for edge in _arrows_of_the_code() if set(edge) <= set(drawn)})
    found = set(diagram.arrows)
    assert found == needed, f"draw {sorted(needed - found)}, leave out {sorted(found - needed)}"


def _arrows_of_the_code() -> set[tuple[str, str]]:
    """Pairs of different lines of the table: modules of the first import modules of the second."""
    pairs = {(name, target) for name in SHIPPED_MODULES for target in imports(name) if under(target, *SHIPPED)}
    lines = {(ORDER[line_of(tail)], ORDER[line_of(tip)]) for tail, tip in pairs}
    return {(tail, tip) for tail, tip in lines if tail != tip}


def _reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The edges that no path of others stands for. Edges of a public package to modules above it are not drawn."""
    after: dict[str, set[str]] = {}
    for tail, tip in edges:
        after.setdefault(tail, set()).add(tip)

    @cache
    def reachable(start: str) -> frozenset[str]:
        tips = after.get(start, set())
        return frozenset(tips).union(*map(reachable, tips))

    return {(tail, tip) for tail, tip in edges if not any(tip in reachable(other) for other in after[tail])}


def test_a_library_is_known_where_the_table_says() -> None:
    tops = {name: {target.partition(".")[0] for target in imports(name)} for name in SHIPPED_MODULES}
    wrong = [
        f"{name} imports {library}"
        for library, homes in KNOWN_BY.items()
        for name, top in tops.items()
        if library in top and not under(name, *homes)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_pipeline_knows_the_core_at_its_border_only() -> None:
    wrong = []
    for name in (name for name in SHIPPED_MODULES if under(name, "pipeline")):
        core = {target for target in imports(name) if under(target, "wedlm_core")}
        if core and not under(name, *KNOWS_CORE):
            wrong.append(f"{name} imports {sorted(core)}: take it from pipeline.codec")
        heavy = sorted(target for target in core if not under(target, *TORCH_FREE_CORE))
        if heavy and name != "pipeline.worker.load_engine":
            wrong.append(f"{name} imports {heavy}, which may need torch")
    assert not wrong, "\n".join(wrong)


def test_tests_and_benchmarks_share_by_testing_alone() -> None:
    names = [name for name in modules() if under(name, *UNSHIPPED)]
    wrong = {
        name: found for name in names if (found := sorted(t for t in imports(name) if under(t, *_not_shared(name))))
    }
    assert not wrong, "\n".join(f"{name} imports {own}: shared code lives in testing/" for name, own in wrong.items())


def _not_shared(name: str) -> tuple[str, ...]:
    """Packages that a module of the tests, the benchmarks or testing/ may not import from."""
    if under(name, "testing"):
        return "tests", "benchmarks"
    if under(name, "benchmarks"):
        return ("tests",)
    about = name.replace("tests.", "", 1).rpartition(".")[0]  # a test of a benchmark imports that one
    return ("tests",) if under(about, "benchmarks") else ("tests", "benchmarks")


def fresh(code: str) -> str:
    """The output of a fresh interpreter."""
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


def test_importing_the_pipeline_and_the_leaves_that_it_uses_brings_neither_torch_nor_ray() -> None:
    code = f"""
import importlib, sys, pipeline
for name in pipeline.__all__:
    getattr(pipeline, name)
for name in {TORCH_FREE_CORE}:
    importlib.import_module(name)
    assert 'torch' not in sys.modules, name
print(sorted({{'torch', 'ray', 'transformers', 'datasets', 'pandas'}} & set(sys.modules)))
"""
    assert fresh(code) == "[]"
