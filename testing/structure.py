"""The structure of a checkout in figures: folders, imports, circles, public names, and the files that one step passes.

    python -m testing.structure [FOLDER]

FOLDER is the root of a checkout, this one by default; its code is read, and run for the last two figures.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from testing.repository import ROOT

PACKAGES = ("wedlm_batch", "wedlm_base", "wedlm_core", "pipeline", "jobs")

Graph = Mapping[str, frozenset[str]]

_STEP = """
import sys, wedlm_core
from pathlib import Path
llm = wedlm_core.LLM("tiny")
params = wedlm_core.SamplingParams(max_tokens=256, ignore_eos=True)
llm.generate(["Count from 3 to 9."], params)
engine, files, root = llm.engine, set(), str(Path(wedlm_core.__file__).parent)
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(root):
        files.add(frame.f_code.co_filename)
ids = tuple(llm.tokenizer.encode("Count from 3 to 9."))
engine.add(wedlm_core.Request(request_id="a", prompt_token_ids=ids, params=params, seed=1))
for _ in range(4):
    engine.step()
sys.setprofile(note)
for _ in range(4):
    engine.step()
sys.setprofile(None)
print(len(files))
"""


def modules(root: Path, package: str) -> dict[str, Path]:
    """File of each module of a package by its dotted name."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(files: Mapping[str, Path]) -> dict[str, frozenset[str]]:
    """The modules among ``files`` that each imports, anywhere in it."""
    return {name: frozenset(set(_targets(path, files)) - {name}) for name, path in files.items()}


def _targets(path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in files or node.module in files:
                    yield whole if whole in files else node.module


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Groups of modules that import each other (strongly connected components of two or more; Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in graph[name]:
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            group: list[str] = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(tuple(sorted(group)))

    for name in graph:
        if name not in order:
            visit(name)
    return found


def levels(graph: Graph) -> int:
    """Length of the longest chain of imports, the modules of a circle counted as one."""
    home = {name: name for name in graph} | {name: group[0] for group in circles(graph) for name in group}
    below: dict[str, set[str]] = {one: set() for one in home.values()}
    for name, targets in graph.items():
        below[home[name]] |= {home[target] for target in targets} - {home[name]}
    depth: dict[str, int] = {}

    def visit(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((visit(target) for target in below[name]), default=0)
        return depth[name]

    return max(map(visit, below), default=0)


def _rooms(graph: Graph, files: Mapping[str, Path]) -> dict[str, frozenset[str]]:
    """The same between folders: a module stands for the folder it lies in, one of a package itself for itself."""

    def room(name: str) -> str:
        return name if files[name].name == "__init__.py" or name.count(".") == 1 else name.rpartition(".")[0]

    between: dict[str, set[str]] = {room(name): set() for name in graph}
    for name, targets in graph.items():
        between[room(name)] |= {room(target) for target in targets} - {room(name)}
    return {name: frozenset(targets) for name, targets in between.items()}


def _public_names(files: Mapping[str, Path]) -> int:
    """Functions and classes at the top of all modules whose names begin with no underscore."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = (node for path in files.values() for node in ast.parse(path.read_text(encoding="utf-8")).body)
    return sum(isinstance(node, kinds) and not node.name.startswith("_") for node in nodes)


def _describe(root: Path, package: str) -> Iterator[str]:
    files = modules(root, package)
    graph = {name: targets - {package} for name, targets in arrows(files).items()}
    folders = Counter(str(path.parent.relative_to(root)) for path in files.values() if path.name != "__init__.py")
    rooms = _rooms(graph, files)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files.values())
    yield f"{package}: {len(files)} modules, {lines} lines, {_public_names(files)} public names"
    yield f"  modules a folder: {', '.join(f'{folder} {count}' for folder, count in sorted(folders.items()))}"
    yield f"  between modules: {sum(map(len, graph.values()))} arrows on {levels(graph)} levels"
    yield f"  circles: {circles(graph)}"
    yield f"  between rooms: {len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows on {levels(rooms)} levels"


def main(arguments: list[str]) -> int:
    """Print the figures; the exit code."""
    root = Path(arguments[0]).resolve() if arguments else ROOT
    for package in PACKAGES:
        print("\n".join(_describe(root, package)))
    done = subprocess.run([sys.executable, "-c", _STEP], cwd=root, capture_output=True, text=True, check=False)
    print(f"files of wedlm_core that one decode step passes: {done.stdout.strip() or done.stderr[-300:]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
