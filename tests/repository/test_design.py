"""The contracts in docs/design are short, name tests that exist, and draw packages and imports as they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from testing.repository import ROOT

DESIGN = ROOT / "docs" / "design"
CONTRACTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DESIGN.glob("*.md"))}
CODE = ("wedlm_batch", "wedlm_base", "jobs", "pipeline", "wedlm_core", "tests", "testing", "benchmarks")

Edge = tuple[str, str]


def drawing() -> str:
    """The text of the one Mermaid diagram."""
    (found,) = re.findall(r"```mermaid\n(.*?)```", CONTRACTS["packages"], re.DOTALL)
    return str(found)


def boxes(text: str) -> Mapping[str, str]:
    """Package of each box by its id: the label's text before the colon."""
    found = re.findall(r'^\s*(\w+)\["([\w.]+): [^"]+"\]$', text, re.MULTILINE)
    return dict(found)


def arrows(text: str) -> list[Edge]:
    """Packages at the ends of each arrow, as they are drawn."""
    named = boxes(text)
    return [(named[tail], named[tip]) for tail, tip in re.findall(r"^\s*(\w+) --> (\w+)$", text, re.MULTILINE)]


def reduced(edges: Iterable[Edge]) -> set[Edge]:
    """The edges that no path of others stands for (of a graph without circles there is one such set)."""
    after: dict[str, set[str]] = {}
    for tail, tip in edges:
        after.setdefault(tail, set()).add(tip)

    @cache
    def reachable(start: str) -> frozenset[str]:
        tips = after.get(start, set())
        return frozenset(tips).union(*map(reachable, tips))

    return {(tail, tip) for tail, tips in after.items() for tip in tips
            if not any(tip in reachable(other) for other in tips)}  # fmt: skip


@cache
def order() -> tuple[str, ...]:
    """The table of ``test_imports.py``, without importing a test."""
    source = (ROOT / "tests" / "repository" / "test_imports.py").read_text(encoding="utf-8")
    (table,) = re.findall(r"^ORDER = \((.*?)^\)", source, re.DOTALL | re.MULTILINE)
    return tuple(re.findall(r'"([\w.]+)"', table))


def place(line: str) -> Path:
    """Folder of a line of the table, whether or not it is one."""
    return ROOT.joinpath(*line.split("."))


def home(module: str, lines: Iterable[str]) -> str | None:
    """The longest of ``lines`` that a module belongs to."""
    known = set(lines)
    while module and module not in known:
        module = module.rpartition(".")[0]
    return module or None


def targets(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports() -> frozenset[Edge]:
    """Pairs of lines of the table: the first imports the second."""
    found: set[Edge] = set()
    for package in ("wedlm_batch", "wedlm_base", "jobs", "pipeline", "wedlm_core"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            own = home(".".join(parts[:-1] if parts[-1] == "__init__" else parts), order())
            tips = {home(target, order()) for target in targets(path)}
            found |= {(own, tip) for tip in tips if own is not None and tip is not None and tip != own}
    return frozenset(found)


FOLDERS = [line for line in order() if (place(line) / "__init__.py").exists()]


def test_contracts_have_at_most_150_lines_and_the_index_lists_them() -> None:
    index = (ROOT / "docs" / "DESIGN.md").read_text(encoding="utf-8")
    assert len(index.splitlines()) < 30
    assert set(re.findall(r"\(design/([\w-]+)\.md\)", index)) == set(CONTRACTS)
    assert not [name for name, text in CONTRACTS.items() if len(text.splitlines()) > 150]


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_names_tests_that_exist(name: str) -> None:
    folder, missing = "", []
    for path in re.findall(r"`((?:tests/[\w/]*)?(?:test_\w+\.py)?)`", CONTRACTS[name]):
        folder = path.rpartition("/")[0] or folder
        if path and not (ROOT / folder / path.rpartition("/")[2]).exists():
            missing.append(path)
    assert folder
    assert not missing


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_names_modules_that_exist(name: str) -> None:
    modules = [path.relative_to(ROOT).as_posix() for top in CODE for path in (ROOT / top).rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", CONTRACTS[name])
    assert not [one for one in named if not any(f"/{path}".endswith(f"/{one}") for path in modules)]


def test_every_citation_of_a_contract_names_one() -> None:
    paths = [path for top in CODE for path in sorted((ROOT / top).rglob("*.py"))]
    cited = [(path, name) for path in paths
             for name in re.findall(r"docs/design/([\w-]+)\.md", path.read_text(encoding="utf-8"))]  # fmt: skip
    assert len(cited) > 10
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in cited if name not in CONTRACTS]


def test_every_box_is_a_line_of_the_table_of_imports_once() -> None:
    named = list(boxes(drawing()).values())
    assert len(set(named)) == len(named)
    assert set(named) <= set(order()), f"not in the table: {set(named) - set(order())}"


def test_every_package_of_the_table_is_drawn() -> None:
    assert len(FOLDERS) > 20
    assert set(FOLDERS) <= set(boxes(drawing()).values())


def test_arrows_point_down_the_table() -> None:
    wrong = [edge for edge in arrows(drawing()) if order().index(edge[0]) >= order().index(edge[1])]
    assert not wrong


def test_arrows_are_the_imports_between_boxes_without_those_that_others_imply() -> None:
    drawn = set(boxes(drawing()).values())
    needed = reduced({(tail, tip) for tail, tip in imports() if {tail, tip} <= drawn})
    found = set(arrows(drawing()))
    assert found == needed, f"draw {sorted(needed - found)}, leave out {sorted(found - needed)}"


def test_the_parser_reads_what_mermaid_reads() -> None:
    text = 'flowchart TD\n    a["x.y: words, more"]\n    b["z: words"]\n    a --> b\n'
    assert boxes(text) == {"a": "x.y", "b": "z"}
    assert arrows(text) == [("x.y", "z")]
    assert reduced([("a", "b"), ("b", "c"), ("a", "c")]) == {("a", "b"), ("b", "c")}
    assert home("x.y.z", ("x", "x.y")) == "x.y"
