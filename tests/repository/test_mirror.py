"""``tests/`` mirrors the tree: a test lies in the folder of its subject, under its name."""

from __future__ import annotations

from pathlib import Path

from testing.repository import ROOT

REPOSITORY = Path("tests/repository")  # tests of the repository as a whole
FILES = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py"))]


def subjects(package: Path) -> set[str]:
    """Names that a test in the mirror of ``package`` may be about: its modules, its packages, itself."""
    inside = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return (inside - {"__init__", "__main__"}) | {package.name}


def test_tests_are_named_after_what_they_test() -> None:
    wrong = []
    for path in (path for path in FILES if REPOSITORY not in path.parents):
        package = ROOT / path.relative_to("tests").parent
        if not (package / "__init__.py").exists():
            wrong.append(f"{path}: there is no package {package.relative_to(ROOT)}")
            continue
        name = path.stem.removeprefix("test_")
        if not any(name == one or name.startswith(f"{one}_") for one in subjects(package)):
            own = sorted(subjects(package))
            wrong.append(f"{path}: {package.relative_to(ROOT)} has {own}; name the test after one")
    assert not wrong, "\n".join(wrong)


def test_every_test_file_is_collected() -> None:
    strange = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith(("test_", "conftest"))]
    assert not strange, f"{strange}: code shared by tests lives in testing/"
