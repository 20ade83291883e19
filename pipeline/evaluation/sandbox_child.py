"""What runs inside the sandbox: gives up rights, then runs a program.

Standard library only, as :mod:`pipeline.evaluation.sandbox` hands it over as text. Arguments: two file descriptors (the
token to read, the answer to write), JSON of the limits. The program comes on standard input. Each barrier is tried;
which of them stand is part of the answer, and a program is run only if the required ones do.
"""

import ctypes
import json
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_NEWNS_NET, _NEWNS_IPC, _NEWNS_USER, _NEWNS_PID = 0x40000000, 0x08000000, 0x10000000, 0x20000000
_NOBODY = 65534
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on all architectures
_NO_NEW_PRIVILEGES, _KEEP_CAPABILITIES = 38, 8
_CAPABILITIES_VERSION, _READ_ANY = 0x20080522, 1 << 2  # CAP_DAC_READ_SEARCH
_READ_FILE, _READ_DIR, _EXECUTE = 1 << 2, 1 << 3, 1 << 0
_ALL_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF}  # by version of the interface; from 5 on 0xFFFF
_TCP = 0x3  # bind and connect, from version 4 on


def _isolate(libc: ctypes.CDLL) -> list[str]:
    """Namespaces of its own: a network without an interface that is up, and processes that no signal leaves."""
    for names, flags in ((("network", "signals"), _NEWNS_NET | _NEWNS_IPC | _NEWNS_PID),
                         (("network",), _NEWNS_NET | _NEWNS_IPC)):  # fmt: skip
        if libc.unshare(flags) == 0 or libc.unshare(flags | _NEWNS_USER) == 0:
            if "signals" in names:
                _go_inside()
            return list(names)
    return []


def _go_inside() -> None:
    """Go on as a child of the first process of the new namespace; the processes left behind end as that child does."""
    for _ in range(2):  # the first one ignores signals, as it is an init process
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def _drop_user(libc: ctypes.CDLL, read_any: bool) -> bool:
    """Become the user that owns nothing, where this process may.

    With ``read_any`` it may still read what Landlock allows, though others may not: Python may lie in a private folder.
    """
    if os.geteuid() != 0:
        return False
    try:
        libc.prctl(_KEEP_CAPABILITIES, 1 if read_any else 0, 0, 0, 0)
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except OSError:
        return False
    if not read_any:
        return True
    kept = (ctypes.c_uint32 * 6)(_READ_ANY, _READ_ANY, 0, 0, 0, 0)  # effective, permitted, inheritable; high halves
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    return libc.capset(header, kept) == 0


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Rule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def _restrict_files(libc: ctypes.CDLL, readable: Sequence[str], writable: Sequence[str]) -> bool:
    """Landlock: files are readable below ``readable``, writable below ``writable``, and nowhere else."""
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return False
    rights = _ALL_FILE_RIGHTS.get(version, 0x7FFF if version == 4 else 0xFFFF)
    ruleset = _Ruleset(fs=rights, net=_TCP if version >= 4 else 0, scoped=0x3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    fd = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if fd < 0:
        return False
    allowed = [(path, _READ_FILE | _READ_DIR | _EXECUTE) for path in readable] + [(path, rights) for path in writable]
    for path, access in allowed:
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        if not os.path.isdir(path):
            access &= _READ_FILE | _EXECUTE
        rule = _Rule(allowed=access & rights, parent=parent)
        libc.syscall(_LANDLOCK_ADD, ctypes.c_int(fd), ctypes.c_int(1), ctypes.byref(rule), ctypes.c_uint32(0))
        os.close(parent)
    done = libc.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(fd), ctypes.c_uint32(0)) == 0
    os.close(fd)
    return done


def _limit(limits: Mapping[str, Any]) -> None:
    """Limits of this process that it cannot raise again."""
    seconds = max(1, -int(-limits["seconds"] // 1))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _no_process() -> bool:
    """Whether no further process can be made; tried, as some users are exempt from the limit."""
    try:
        child = os.fork()
    except OSError:
        return True
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return False


def _enter(limits: Mapping[str, Any]) -> list[str]:
    """Give up rights; the names of the barriers that stand."""
    libc = ctypes.CDLL(None, use_errno=True)
    barriers: list[str] = []
    readable = [*{os.path.realpath(path) for path in (sys.base_prefix, os.path.dirname(os.__file__))}, "/usr/lib",
                "/lib", "/lib64", "/dev/null", "/dev/urandom", "/usr/share/zoneinfo"]  # fmt: skip
    barriers += _isolate(libc)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and _restrict_files(libc, readable, [os.getcwd()]):
        barriers.append("files")
    if _drop_user(libc, "files" in barriers):
        barriers.append("user")
    if "user" in barriers and "signals" not in barriers:
        barriers.append("signals")  # to processes of that user alone
    _limit(limits)
    if _no_process():
        barriers.append("processes")
    return barriers


def _main() -> None:
    token_fd, answer_fd, limits = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    read, write, leave, dumps = os.read, os.write, os._exit, json.dumps  # before the program can replace them
    program = sys.stdin.buffer.read().decode()

    def answer(**facts: Any) -> None:
        write(answer_fd, dumps(facts).encode()[:4000] + b"\n")

    barriers = _enter(limits)
    answer(barriers=barriers)
    if not {"processes", "signals"} <= set(barriers) or not {"user", "files"} & set(barriers):
        leave(0)
    sys.argv[:] = [""]
    sys.setrecursionlimit(3000)
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        kind, text = type(error).__name__, ""
        try:
            text = str(error)[:300]
        except BaseException:
            text = "(its message cannot be shown)"
        answer(error=kind, message=text)
        leave(0)
    # Nobody knows the token before the program has run to its end.
    answer(token=read(token_fd, 64).decode())
    leave(0)


if __name__ == "__main__":
    _main()
