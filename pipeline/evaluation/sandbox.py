"""Runs Python programs that nobody has read, in a process with as few rights as this machine can take from it.

A process of its own with an empty environment, in an empty folder, without standard streams; limits of time, memory,
size of files, and no further process or thread; namespaces without a network and without other processes; another user
(where started by root) and Landlock rules for files (where the kernel has them). What a program prints or returns
counts for nothing: only a process that has run it to its end can read the token that says so.

What this does not hold: a program written against this very harness (it could find the token's descriptor), and
faults of the kernel. Do not run programs of people who want to harm you here.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import ResourceError

__all__ = ["Limits", "ProgramResult", "barriers", "run_program"]

_CHILD = Path(__file__).parent / "sandbox_child.py"
_START_SECONDS = 10.0
"""For the interpreter to start on a busy machine, on top of a program's time."""
_ANSWER_BYTES = 16 << 10


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: of processor time; wall-clock time is that and the start of an interpreter.
        memory_bytes: of address space.
        file_bytes: of any file that it writes.
    """

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """What became of a program.

    Attributes:
        status: "passed" if it ran to its end; "failed" if it raised; "timeout"; "died" if its process ended before
            (killed by a limit, ``os._exit``); "refused" if the barriers that have to stand do not.
        detail: class and message of what it raised, or how it ended.
        barriers: those that stood: "network", "signals", "files", "user", "processes".
    """

    status: Literal["passed", "failed", "timeout", "died", "refused"]
    detail: str = ""
    barriers: tuple[str, ...] = ()


def run_program(program: str, limits: Limits | None = None) -> ProgramResult:
    """Run a program to its end, or until it breaks a limit."""
    limits = limits or Limits()
    folder = tempfile.mkdtemp(prefix="wedlm-sandbox-")
    try:
        os.chmod(folder, 0o777)  # the program's user may be another one; the folder's name is random
        return _run(program, limits, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def barriers() -> tuple[str, ...]:
    """The barriers that stand on this machine, found by raising them once.

    Raises:
        ResourceError: without them no program is run here.
    """
    result = run_program("x = 1")
    if result.status != "passed":
        raise ResourceError(
            f"the sandbox for generated code cannot be set up here ({result.status}: {result.detail or 'no reason'}; "
            f"it stands by {list(result.barriers)}). It takes Linux, and either Landlock or the right to change "
            "the user. Evaluate on such a machine, or leave tasks with code out."
        )
    return result.barriers


def _run(program: str, limits: Limits, folder: str) -> ProgramResult:
    token = secrets.token_hex(16)
    token_read, token_write = os.pipe()
    answer_read, answer_write = os.pipe()
    try:
        os.write(token_write, token.encode())
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _CHILD.read_text(encoding="utf-8"),
             str(token_read), str(answer_write), json.dumps(_plain(limits))],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={}, cwd=folder, pass_fds=(token_read, answer_write), start_new_session=True,
        )  # fmt: skip
        os.close(answer_write)
        answer_write = -1
        timed_out = _wait(process, program, limits.seconds + _START_SECONDS)
        answers = _answers(answer_read)
    finally:
        for descriptor in (token_read, token_write, answer_read, answer_write):
            if descriptor >= 0:
                os.close(descriptor)
    return _outcome(answers, token, timed_out, process.returncode)


def _plain(limits: Limits) -> dict[str, Any]:
    return {"seconds": limits.seconds, "memory_bytes": limits.memory_bytes, "file_bytes": limits.file_bytes}


def _wait(process: subprocess.Popen[bytes], program: str, seconds: float) -> bool:
    """Hand over the program and wait for the end; True if it had to be killed for its time."""
    timed_out = False
    try:
        process.communicate(program.encode("utf-8", "replace"), timeout=seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        try:  # the whole group, also what a dead leader left behind
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()
    return timed_out


def _answers(descriptor: int) -> list[dict[str, Any]]:
    """The lines that the child wrote, as far as they are what a child writes."""
    os.set_blocking(descriptor, False)
    text = b""
    while len(text) < _ANSWER_BYTES:
        try:
            piece = os.read(descriptor, 4096)
        except BlockingIOError:
            break
        if not piece:
            break
        text += piece
    found = []
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict):
            found.append(one)
    return found


def _outcome(answers: list[dict[str, Any]], token: str, timed_out: bool, code: int) -> ProgramResult:
    stood = tuple(answers[0].get("barriers", ())) if answers else ()
    if answers and (not {"processes", "signals"} <= set(stood) or not {"user", "files"} & set(stood)):
        return ProgramResult(status="refused", detail="too few barriers stand", barriers=stood)
    last = answers[-1] if answers else {}
    if timed_out or code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        return ProgramResult(status="timeout", detail="out of time", barriers=stood)
    if code == 0 and last.get("token") == token:
        return ProgramResult(status="passed", barriers=stood)
    if "error" in last:
        return ProgramResult(
            status="failed", detail=f"{last['error']}: {last.get('message', '')}"[:400], barriers=stood
        )
    return ProgramResult(status="died", detail=f"its process ended with {code}", barriers=stood)
