"""The notice that this process has to go soon: SIGTERM, or a platform's notice about its machine.

A platform's word comes as a file that appears, or as an answer of an HTTP address such as a cloud's metadata service.
The variable ``WEDLM_SPOT_NOTICE`` of a worker's environment names one of them.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import urllib.request
from pathlib import Path
from types import FrameType

from pipeline.codec import redact
from pipeline.errors import EngineDiedError

SPOT_NOTICE = "WEDLM_SPOT_NOTICE"
"""Name of the variable that holds a path or an http(s) URL."""
SIGTERM = "SIGTERM"
"""Text of :meth:`Notice.wait` for the signal."""
POLL_SECONDS = 5.0
_ANSWER_SECONDS = 2.0
_NO = frozenset({"", "false", "none", "null"})
"""Answer of an address while the machine stays; an error such as 404 means the same."""
_LONGEST = 200


def spot_notice(place: str) -> str | None:
    """Read the file or address: None while the machine stays, else the reason why it goes.

    A file means that the machine goes by being there; an address by status 200 and a body that is not "false" or empty.
    """
    if not place.startswith(("http://", "https://")):
        path = Path(place)
        try:
            said = path.read_bytes()[:_LONGEST].decode(errors="replace").strip() if path.is_file() else None
        except OSError:  # it went away meanwhile, or is on a file system that fails
            return None
        return None if said is None else said or f"{place} is there"
    # A metadata service is on the machine: never ask a proxy. Google's wants the header; others do not mind.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(place, headers={"Metadata-Flavor": "Google"})
    try:
        with opener.open(request, timeout=_ANSWER_SECONDS) as answer:
            said = answer.read(_LONGEST).decode(errors="replace").strip() if answer.status == 200 else ""
    except (OSError, ValueError):  # 404, or no answer
        return None
    return None if said.lower() in _NO else said


def _fault(place: str) -> str | None:
    if place.startswith(("http://", "https://")):
        return None
    if "://" in place:
        return "no address of http or https"
    if not os.path.isabs(place):
        return "a relative path, and each process has a working folder of its own"
    return "a folder" if os.path.isdir(place) else None


class Notice:
    """Waits for a notice; the first one counts. ``place``: for :func:`spot_notice`; None does not look."""

    def __init__(self, place: str | None = None, poll_seconds: float = POLL_SECONDS) -> None:
        self._place = place
        self._poll_seconds = poll_seconds
        # A signal handler may interrupt its own thread anywhere: this queue allows that, an event's lock does not.
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()

    @staticmethod
    def of_environment() -> Notice:
        """As the variable :data:`SPOT_NOTICE` says.

        Raises:
            EngineDiedError: it names neither a file nor an address, so no notice would ever be seen.
        """
        place = os.environ.get(SPOT_NOTICE) or None
        if place is not None and (fault := _fault(place)) is not None:
            raise EngineDiedError(
                f"{SPOT_NOTICE}={redact(place)!r}: {fault}. Name a file, which is there once the machine goes, by an "
                "absolute path; or an http(s) address."
            )
        return Notice(place)

    def listen(self) -> None:
        """Take SIGTERM for a notice from now on, if this is the main thread, and watch the file or address."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)
        if self._place is not None:
            threading.Thread(target=self._poll, args=(self._place,), name="spot notice", daemon=True).start()

    def wait(self, timeout: float | None = None) -> str | None:
        """Block until there is a notice: why. None if there is none in time."""
        try:
            said = self._said.get(timeout=timeout)
        except queue.Empty:
            return None
        self._said.put(said)
        return said

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._said.put(SIGTERM)

    def _poll(self, place: str) -> None:
        pause = threading.Event()
        while (said := spot_notice(place)) is None:
            pause.wait(self._poll_seconds)
        self._said.put(f"notice of its machine: {said}")
