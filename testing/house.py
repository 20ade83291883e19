"""Count the house: lines, files, flat modules, double names, lengths of functions.

    python -m testing.house

It prints one table. Code lines are those without blank lines, comments and docstrings. Files are those that git tracks.
"""

from __future__ import annotations

import ast
import io
import statistics
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

PRODUCT = ("wedlm_base", "wedlm_batch", "wedlm_core", "pipeline", "jobs", "infra")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
           tokenize.ENDMARKER)  # fmt: skip


def code_lines(text: str) -> int:
    """Lines of Python source with code: no blank line, comment or docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def function_lengths(text: str) -> list[int]:
    """Lines of each function, from its ``def`` to its end."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, _FUNCTIONS)
    ]


def measured(root: Path) -> Iterator[tuple[str, str]]:
    """Name and value of each row of the table, for the checkout at ``root``."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\0") if name.endswith(".py") and (root / name).exists()]
    texts = {name: (root / name).read_text(encoding="utf-8") for name in names}

    def under(*folders: str) -> list[str]:
        return [name for name in names if name.startswith(tuple(f"{folder}/" for folder in folders))]

    def total(files: Sequence[str]) -> int:
        return sum(texts[name].count("\n") for name in files)

    product = under(*PRODUCT)
    lengths = [length for name in product for length in function_lengths(texts[name])]
    statements = sum(isinstance(node, ast.stmt) for name in product for node in ast.walk(ast.parse(texts[name])))
    code = sum(code_lines(texts[name]) for name in product)
    yield "product: lines, code lines, files", f"{total(product):,}, {code:,}, {len(product)}"
    for folder in ("wedlm_core", "pipeline", "tests", "testing", "benchmarks"):
        yield f"{folder}: lines", f"{total(under(folder)):,}"
    for folder in ("pipeline", "wedlm_core/engine"):
        flat = [name for name in under(folder) if name.count("/") == folder.count("/") + 1]
        yield f"modules flat in {folder}", str(sum(not name.endswith("__init__.py") for name in flat))
    stems = Counter(Path(name).name for name in product if not name.endswith(("__init__.py", "__main__.py")))
    yield "file names used twice", str(sum(count > 1 for count in stems.values()))
    yield (
        "lines of a function: median, p90",
        (f"{statistics.median(lengths):.0f}, {statistics.quantiles(lengths, n=10)[-1]:.0f}"),
    )
    yield "code lines a statement", f"{code / statements:.2f}"


def main() -> None:
    """Print the table of this checkout."""
    print("| measure | now |\n| --- | --- |")
    for name, value in measured(Path(__file__).parents[1]):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
