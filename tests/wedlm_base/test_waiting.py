"""Threads of actors and commands sleep while they wait, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from testing.repository import ROOT
from wedlm_base.waiting import wait_passively


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT"])
def test_what_the_user_has_set_stays(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(chosen, "100")
    wait_passively()
    assert os.environ.get("OMP_WAIT_POLICY", "unset") == ("100" if chosen == "OMP_WAIT_POLICY" else "unset")
    monkeypatch.delenv(chosen)
    wait_passively()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")  # whatever was there before is restored
    monkeypatch.delenv("KMP_BLOCKTIME")


def test_a_command_chooses_before_torch_is_imported() -> None:
    """OpenMP reads the variable when it is loaded, and never again."""
    program = "import os, sys; from wedlm_base.names import load; load('jobs'); "
    program += "assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["PASSIVE"]
