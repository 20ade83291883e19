"""Files that use the Ray session go to one process, in one piece; every other file is a piece of its own."""

from __future__ import annotations

import pytest

from testing.repository import ROOT
from testing.scheduling import uses_session


def test_the_files_that_use_the_session_are_known_by_their_text(request: pytest.FixtureRequest) -> None:
    found = {
        item.nodeid.split("::")[0] for item in request.session.items if "cluster" in getattr(item, "fixturenames", ())
    }
    assert all(uses_session(file) for file in found)
    assert uses_session("tests/pipeline/cluster/test_executor.py")
    assert not uses_session("tests/pipeline/commands/test_read.py"), "it has sessions of its own"
    assert not uses_session("tests/pipeline/test_absent.py")
    assert sum(uses_session(str(path.relative_to(ROOT))) for path in (ROOT / "tests").rglob("test_*.py")) >= 6
