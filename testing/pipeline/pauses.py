"""No waiting for other processes: tests look after a pause, not at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.commit import lease
from pipeline.storage import retry


@contextmanager
def no_pauses() -> Iterator[None]:
    """Take leases without a pause for competitors, and retry storage operations without a pause."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "_SETTLE_SECONDS", 0.0)
        patch.setattr(retry, "_FIRST_WAIT_SECONDS", 0.0)
        yield
