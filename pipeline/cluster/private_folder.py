"""The folder of a private Ray session: no other user may enter it. It goes when this process ends, even if killed.

Ray makes its own folders writable for everybody. Here they lie in one of mode 0700, with the token of the session.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["end_of_logs", "private_folder"]

# The system limits a socket's path to 103 bytes or more, of which Ray's names below its folder take 68.
_LONGEST = 103 - 68
_RAY = "ray"
# Waits for the end of the process that holds its standard input, and for Ray's processes, which end after that.
_REMOVE = 'read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$@" 2>/dev/null && exit; sleep 1; done'
_FRAME = "(+0x"  # in a line of a stack of Ray's own, which follows the reason
_REMOVERS: list[subprocess.Popen[bytes]] = []


@functools.cache
def private_folder() -> str:
    """The folder for Ray's files, made at the first call; sets the token of the session, unless the user has set one.

    Left alone, Ray would leave a token in the user's home, which later clusters and clients then trip over.
    """
    own = tempfile.mkdtemp(prefix="wedlm-ray-", dir=os.environ.get("RAY_TMPDIR") or None)
    folders, path = [own], os.path.join(own, _RAY)
    os.mkdir(path)
    if len(os.fsencode(path)) > _LONGEST:
        folders.append(tempfile.mkdtemp(prefix="wedlm-ray-", dir="/tmp"))
        os.symlink(path, path := os.path.join(folders[1], _RAY))
    _remove_at_end(folders)
    if not any(os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        token = os.path.join(own, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        # Ray itself turns the mode on for a local cluster, and refreshes what it read of it at import.
        os.environ["RAY_AUTH_TOKEN_PATH"] = token
    return path


def end_of_logs(folder: str, lines: int = 5) -> str:
    """The last lines of each of the three logs below a folder that processes of Ray wrote last; the folder goes away.

    Args:
        folder: :func:`private_folder`.
        lines: of each log.
    """
    ends = list[str]()
    for pattern in ("*.err", "*.out"):  # errors first: a process may write to the other file after the cause of its end
        logs = [path for path in Path(folder).glob(f"session_latest/logs/{pattern}") if path.stat().st_size]
        for path in itertools.islice(sorted(logs, key=lambda path: path.stat().st_mtime, reverse=True), 3 - len(ends)):
            text = path.read_text("utf-8", "replace").rstrip().splitlines()
            last = [line for line in text if _FRAME not in line][-lines:]
            ends.append("\n".join([f"{path.name}:", *(f"  {line[:500]}" for line in last)]))
    return "\n".join(ends)


def _remove_at_end(folders: list[str]) -> None:
    _REMOVERS.append(
        subprocess.Popen(
            ["/bin/sh", "-c", _REMOVE, "sh", *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    )
    for folder in folders:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
