"""A command in a pseudo-terminal, and its screen at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_CHUNK = 65_536
_INTERRUPT = b"\x03"


class Terminal:
    """Runs a command in a pseudo-terminal of its own, which is its controlling terminal; a context manager.

    Attributes:
        raw: all bytes that the command wrote.
        process: the command's.

    Args:
        argv: the command.
        columns, lines: size of the terminal.
        environment: of the command.
        cwd: its folder.
    """

    def __init__(
        self, argv: Sequence[str], *, columns: int, lines: int, environment: Mapping[str, str], cwd: Path
    ) -> None:
        import pyte

        self._master, self._slave = pty.openpty()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self.resize(columns, lines)
        self.modes = termios.tcgetattr(self._slave)
        slave = self._slave
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=dict(environment), start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._slave)
        os.close(self._master)

    @property
    def shown(self) -> list[str]:
        """The lines of the screen, without blanks at their ends."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.shown)

    @property
    def is_sane(self) -> bool:
        """Whether the cursor is visible, the modes are those of the beginning, and no colour is left on."""
        cursor = self._screen.cursor
        plain = (cursor.attrs.fg, cursor.attrs.bg, cursor.attrs.bold) == ("default", "default", False)
        return not cursor.hidden and plain and termios.tcgetattr(self._slave) == self.modes

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; the system tells the command."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen.resize(lines, columns)

    def press_ctrl_c(self) -> None:
        """As typed: the terminal sends SIGINT to the command."""
        os.write(self._master, _INTERRUPT)

    def read(self, seconds: float) -> None:
        """Read the command's output for so many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._master], [], [], left)[0]:
                return
            with contextlib.suppress(OSError):
                data = os.read(self._master, _CHUNK)
                self.raw += data
                self._stream.feed(data)

    def read_until(self, found: Callable[[], object], seconds: float) -> None:
        """Read until ``found``.

        Raises:
            AssertionError: it was not in this time, or the command ended before.
        """
        end = time.monotonic() + seconds
        while not found():
            ended = self.process.poll() is not None
            self.read(0.05)
            if found():
                return
            assert not ended, f"ended before:\n{self.text}"
            assert time.monotonic() < end, f"not within {seconds} s:\n{self.text}"

    def wait(self, seconds: float) -> int:
        """Read until the command ends; its exit status."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            self.read(0.05)
            assert time.monotonic() < end, f"did not end within {seconds} s:\n{self.text}"
        self.read(0.1)
        return self.process.wait()
