"""Which process of a parallel test run gets which tests."""

from __future__ import annotations

import re
from functools import cache

from xdist.scheduler import LoadFileScheduling

from testing.repository import ROOT

_SESSION = re.compile(r"""\bcluster: None\b|usefixtures\([^)]*["']cluster["']""")


class FilesAndOneSession(LoadFileScheduling):
    """A file's tests stay in one process, as with ``loadfile``; files that use the Ray session share a process.

    So there is one session, whose workers have imported their modules, and sessions do not compete for the CPUs.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "the Ray session" if uses_session(file) else file


@cache
def uses_session(file: str) -> bool:
    """Whether tests of a file, a path from the root of the repository, use the fixture ``cluster``."""
    path = ROOT / file
    return path.is_file() and _SESSION.search(path.read_text(encoding="utf-8")) is not None
