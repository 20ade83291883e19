"""The folder of a private Ray session: no other user may enter it. It goes when this process ends, even if killed.

Ray makes its own folders writable for everybody. Here they lie in one of mode 0700, with the token of the session.
"""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import shutil
import subprocess
import tempfile

__all__ = ["private_folder"]

# The system limits a socket's path to 103 bytes or more, of which Ray's names below its folder take 68.
_LONGEST = 103 - 68
_RAY = "ray"
# Waits for the end of the process that holds its standard input, and for Ray's processes, which end after that.
_REMOVE = 'read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$@" 2>/dev/null && exit; sleep 1; done'
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
