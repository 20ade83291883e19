"""Worker processes that find other modules of our names are told apart, with a function that needs none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray import cloudpickle

from pipeline.cluster.session import finder, marks_of, why_not
from testing.users_folder import make_folder, run_python
from wedlm_base.names import MARKS


def test_our_packages_are_found_here() -> None:
    assert finder()(marks_of(__name__)) == {}
    assert why_not({}) is None


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("pipeline.cluster.session", {"wedlm_base", "wedlm_batch", "pipeline", "wedlm_core"}),
        ("wedlm_batch.beside_pipeline.pipeline.cluster.session", {"wedlm_base", "wedlm_batch", "wedlm_core"}),
        ("wedlm_batch.beside_wedlm_core.pipeline.cluster.session", {"wedlm_base", "wedlm_batch"}),
    ],
)
def test_a_worker_needs_what_this_process_calls_by_plain_names(module: str, needed: set[str]) -> None:
    assert set(marks_of(module)) == needed


def test_the_function_runs_where_another_module_has_our_name(tmp_path: Path) -> None:
    project = make_folder(tmp_path / "project", "pipeline")
    (project / "find").write_bytes(cloudpickle.dumps((finder(), MARKS)))
    code = """import pickle, sys
find, marks = pickle.load(open("find", "rb"))
assert not {"pipeline", "wedlm_base", "wedlm_batch", "wedlm_core"} & set(sys.modules), "it is pickled whole"
print(find({**marks, "no_such_package": "x"}))"""
    done = run_python(project, "-c", code)
    assert done.stdout.strip() == str({"pipeline": str(project / "pipeline.py"), "no_such_package": None}), done.stderr


def test_the_message_names_package_place_and_remedy() -> None:
    hidden = why_not({"pipeline": "/home/ada/pipeline.py"}) or ""
    assert "'pipeline'" in hidden
    assert "/home/ada/pipeline.py" in hidden
    assert "wedlm_batch" in hidden
    missing = why_not({"wedlm_core": None}) or ""
    assert "'wedlm_core'" in missing
    assert "every node" in missing
