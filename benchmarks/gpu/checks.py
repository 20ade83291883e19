"""GPU minutes: the tests that need a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.section import Report, Scene

_WORKERS, _MOST_FAILURES = 14, 5
_ENDED = re.compile(r"^(?:.*\s)?(PASSED|FAILED|ERROR)\s+(tests/\S+::.*)$")


def tests(scene: Scene) -> Report:
    """Run ``pytest -m gpu``; print each test's name when it ends, so that a run that is ended early shows them."""
    title, notes = "Tests on the device", f"`pytest -m gpu`, ended after {_MOST_FAILURES} failures or its time."
    if scene.device.type != "cuda":
        return Report(title=title, notes=notes, rows=[{"note": "not run: these tests need a GPU"}])
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", str(_WORKERS), f"--maxfail={_MOST_FAILURES}", "-v"]
    root = Path(__file__).resolve().parents[2]
    counts, failed = dict.fromkeys(("PASSED", "FAILED", "ERROR"), 0), []
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if (found := _ENDED.match(line.strip())) is not None:
                counts[found[1]] += 1
                if found[1] != "PASSED":
                    failed.append(found[2])
                    print(line.strip(), flush=True)
            if scene.clock.left < 0:
                process.terminate()
    rows = [{"passed": counts["PASSED"], "failed": len(failed), "exit code": process.returncode}]
    return Report(title=title, notes=notes, rows=rows, facts={"failed": failed})
