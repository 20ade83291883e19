"""Cache folders where the usual ones can and cannot be written to."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import pytest

from wedlm_core import cache
from wedlm_core.config.step_cost import StepCost
from wedlm_core.engine.drafting import cost_table as step_cost
from wedlm_core.model import sources

NOWHERE = "/proc/nowhere"  # nobody can make a folder there, not even root


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine, a home and a folder for temporary files of the test's own."""
    for name in ("WEDLM_CACHE_HOME", "WEDLM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    cache.writable_folder.cache_clear()
    cache._own.cache_clear()


def test_the_usual_place_is_taken_where_it_can_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.writable_cache("kernels") == tmp_path / "home/.cache/wedlm/kernels"
    assert sources.cache_root() == tmp_path / "home/.cache/wedlm-batch"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg/wedlm"
    monkeypatch.setenv("WEDLM_CACHE_HOME", str(tmp_path / "own"))
    assert cache.writable_cache() == tmp_path / "own"
    assert (tmp_path / "own").is_dir()


def test_a_read_only_home_gives_a_temporary_folder_that_lasts_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", NOWHERE)
    with caplog.at_level(logging.WARNING):
        found = cache.writable_cache("kernels")
        assert cache.writable_cache("kernels") == found
    assert found == tmp_path / f"tmp/wedlm-cache-{os.getuid()}/kernels"
    assert found.parent.stat().st_mode & 0o077 == 0, "others do not write code there"
    (record,) = caplog.records
    assert f"{NOWHERE}/.cache/wedlm/kernels" in record.message
    assert str(found) in record.message
    assert "WEDLM_CACHE_HOME" in record.message
    cache.writable_folder.cache_clear()
    cache._own.cache_clear()
    assert cache.writable_cache("kernels") == found, "the next process shares it"


def test_a_temporary_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", NOWHERE)
    open_to_all = tmp_path / f"tmp/wedlm-cache-{os.getuid()}"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    found = cache.writable_cache("kernels")
    assert open_to_all not in found.parents
    assert found.is_dir()


def test_a_user_without_a_home_gets_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    assert (tmp_path / "tmp") in cache.writable_cache("kernels").parents
    assert not (tmp_path / "~").exists()


def test_step_costs_are_kept_for_the_next_process_with_a_read_only_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", NOWHERE)
    cost = StepCost(rows=(1, 8), seconds=(0.1, 0.2), per_sequence=0.0, per_kv=0.0, per_row_kv=0.0)
    step_cost.save_cached("key", cost)
    assert step_cost.load_cached("key") == cost


def test_a_filled_cache_is_read_where_it_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    filled = sources.resolve(f"file://{model}".replace("file://", "local://"))
    assert filled.parent == tmp_path / "home/.cache/wedlm-batch/models"
    monkeypatch.setattr(cache, "is_writable", lambda folder: False)
    assert sources.resolve(f"local://{model}") == filled


def test_a_remote_model_is_fetched_to_a_temporary_folder_with_a_read_only_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    monkeypatch.setenv("HOME", NOWHERE)
    found = sources.resolve(f"local://{model}")
    assert (found / "config.json").read_text() == "{}"
    assert (tmp_path / "tmp") in found.parents
