"""Programs that nobody has read: what they try here, and what becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import ResourceError
from pipeline.evaluation import sandbox
from pipeline.evaluation.sandbox import Limits, run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is made of Linux's means")

BRIEF = Limits(seconds=0.5, memory_bytes=512 << 20)


def test_a_program_that_ends_has_passed_and_one_that_raises_has_not() -> None:
    assert (
        run_program("import math, re, collections, typing, heapq, random\nassert math.sqrt(4) == 2").status == "passed"
    )
    failed = run_program("assert 1 == 2, 'one is not two'")
    assert (failed.status, failed.detail) == ("failed", "AssertionError: one is not two")
    assert run_program("def (").detail.startswith("SyntaxError")
    assert run_program("assert len('\u20ac\U0001f98a') == 2").status == "passed"


@pytest.mark.parametrize(
    "program",
    [
        "print('passed')\nimport os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "raise SystemExit",
        'import os\nfor fd in range(3, 1024):\n  try: os.write(fd, b\'{"token": "0"}\\n\')\n  except OSError: pass\n'
        "os._exit(0)",
        "import os\nos.write = os._exit = print = exit = None\nraise KeyboardInterrupt",
        "import json\njson.dumps = lambda *a, **k: '{}'\nassert False",
        "class E(Exception):\n  def __str__(self): raise MemoryError\nraise E",
        "import ctypes\nctypes.string_at(0)",
        "import os\nos.kill(os.getpid(), 9)",
        "import os\nos.execv('/bin/true', ['true'])",
    ],
)
def test_a_success_is_not_to_be_had_by_saying_so(program: str) -> None:
    assert run_program(program, BRIEF).status in ("failed", "died")


def test_replacing_what_the_harness_uses_does_not_hide_an_end() -> None:
    program = "import os, json\nos.write = os.read = os._exit = json.dumps = None\n"
    assert run_program(program).status == "passed"
    assert run_program(program + "assert False").status == "failed"


@pytest.mark.parametrize("program", ["while True: print('x' * 10_000)", "sum(range(10**12))"])
def test_an_endless_loop_ends_with_its_processor_time(program: str) -> None:
    began = time.monotonic()
    assert run_program(program, BRIEF).status == "timeout"
    assert time.monotonic() - began < 30


def test_one_that_sleeps_or_blocks_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_START_SECONDS", 1.0)
    assert run_program("import time\ntime.sleep(1000)", BRIEF).status == "timeout"
    write_all = "  try:\n    while True: os.write(fd, b'x' * 4096)\n  except OSError: pass"
    flood = f"import os\nfor fd in range(3, 1024):\n{write_all}"
    assert run_program(flood, BRIEF).status == "timeout"


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("x = bytearray(4 << 30)", "MemoryError"),
        ("x = [0] * 10**10", "MemoryError"),
        ("import os\nwhile True: os.fork()", "BlockingIOError"),
        ("import threading\nthreading.Thread(target=print).start()", "RuntimeError"),
        ("import subprocess\nsubprocess.run(['true'])", "BlockingIOError"),
        ("f = open('inside', 'wb')\nwhile True: f.write(b'x' * 65536)", "OSError"),
        ("files = [open(f'{i}', 'w') for i in range(100)]", "OSError"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (9, 9))", "ValueError"),
        ("def f(): f()\nf()", "RecursionError"),
    ],
)
def test_limits_hold(program: str, error: str) -> None:
    result = run_program(program, BRIEF)
    assert (result.status, result.detail.partition(":")[0]) == ("failed", error)


def test_its_own_empty_folder_is_all_that_it_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    target = tmp_path / "evil"
    assert (
        run_program(
            "import os\nassert os.listdir() == []\nopen('x', 'w').write('y')\nassert open('x').read() == 'y'"
        ).status
        == "passed"
    )
    outside = run_program(f"open({str(target)!r}, 'w').write('x')")
    assert outside.status == "failed"
    assert not target.exists()
    victim = tmp_path / "victim"
    victim.write_text("kept")
    victim.chmod(0o666)
    for program in (
        f"import os\nos.unlink({str(victim)!r})",
        f"open({str(victim)!r}, 'w')",
        f"open({str(victim)!r}, 'a')",
    ):
        assert run_program(program).status == "failed"
    assert victim.read_text() == "kept"


def test_no_secret_is_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    secret = tmp_path / "credentials"
    secret.write_text("hunter2")
    secret.chmod(0o600)
    tmp_path.chmod(0o777)
    assert run_program("import os\nassert set(os.environ) <= {'LC_CTYPE'}").status == "passed"
    for place in (f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/maps", str(secret), "/etc/shadow", __file__):
        assert "PermissionError" in run_program(f"open({place!r}, 'rb').read()").detail


def test_no_network_and_no_other_process_is_to_be_reached() -> None:
    if "network" in sandbox.barriers():
        reach = "import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)"
        assert run_program(reach).detail.startswith(("PermissionError", "OSError"))
        send = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
        assert run_program(send).detail.startswith(("PermissionError", "OSError"))
    assert run_program(f"import os\nos.kill({os.getpid()}, 9)").detail.startswith(("PermissionError", "ProcessLookup"))
    with subprocess.Popen(["sleep", "60"]) as other:
        run_program("import os\nos.kill(-1, 9)")
        assert other.poll() is None
        other.kill()
    assert run_program("import os\nos.setuid(0)").detail.startswith("PermissionError") or os.geteuid() != 0


def test_nothing_is_left_behind() -> None:
    before = set(Path("/tmp").glob("wedlm-sandbox-*"))
    descriptors = len(os.listdir("/proc/self/fd"))
    for program in ("x = 1", "1 / 0", "import os\nos._exit(3)"):
        run_program(program)
    assert set(Path("/tmp").glob("wedlm-sandbox-*")) <= before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_without_the_barriers_that_matter_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The child itself refuses: with neither another user nor rules for files, or where processes can be made."""
    source = Path(sandbox._CHILD).read_text()
    for broken in (
        source.replace("def _enter(", "def _entered(").replace(
            "barriers = _enter(limits)", "barriers = ['network', 'signals', 'processes']"
        ),
        source.replace("def _enter(", "def _entered(").replace(
            "barriers = _enter(limits)", "barriers = ['files', 'user', 'signals']"
        ),
    ):
        assert broken != source
        child = tmp_path / "child.py"
        child.write_text(broken)
        monkeypatch.setattr(sandbox, "_CHILD", child)
        assert run_program("x = 1").status == "refused"
        sandbox.barriers.cache_clear()
        with pytest.raises(ResourceError, match="cannot be set up here"):
            sandbox.barriers()
    sandbox.barriers.cache_clear()
