"""The contracts in docs/design are short, and name tests and modules that exist."""

from __future__ import annotations

import re

import pytest

from testing.repository import ROOT

DESIGN = ROOT / "docs" / "design"
CONTRACTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DESIGN.glob("*.md"))}
CODE = ("wedlm_batch", "wedlm_base", "jobs", "pipeline", "wedlm_core", "tests", "testing", "benchmarks")


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
