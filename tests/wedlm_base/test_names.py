"""Our packages are found, and the user's too, where modules of the user's have their names."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

import pytest

import pipeline
import wedlm_batch as wb
import wedlm_core
from testing.users_folder import make_folder, run_python
from wedlm_base import names

BOTH = ("pipeline", "jobs/__init__")


def printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_where_nothing_hides_them_the_namespace_and_the_packages_have_the_same_objects() -> None:
    assert wb.pipeline is pipeline
    assert wb.wedlm_core is wedlm_core
    assert wb.run is pipeline.run
    assert wb.LLM is wedlm_core.LLM
    assert set(wb.__all__) == {*pipeline.__all__, *wedlm_core.__all__} - {"__all__"}
    assert {"run", "LLM", "pipeline", "jobs", "__version__"} <= set(dir(wb))


def test_one_error_of_configurations_catches_both() -> None:
    assert issubclass(pipeline.ConfigError, wb.ConfigError)
    assert wb.ConfigError is wedlm_core.ConfigError
    with pytest.raises(wb.ConfigError, match="actors"):
        wb.RunConfig(input="x", output="y", actors=0)
    with pytest.raises(wb.ConfigError, match="page_size"):
        wb.EngineConfig(page_size=-1)


def test_an_unknown_name_is_an_attribute_error_that_python_completes() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'SamplingParam'") as caught:
        wb.SamplingParam  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("SamplingParam", wb)


def test_importing_the_namespace_imports_nothing_else(tmp_path: Path) -> None:
    code = "import __future__, sys; old = set(sys.modules); import wedlm_batch; print(sorted(set(sys.modules) - old))"
    assert printed(run_python(tmp_path, "-c", code)) == "['wedlm_base', 'wedlm_base.version', 'wedlm_batch']"


_LOAD_ALL = """
import pkgutil, importlib, sys
from wedlm_base.names import load
for package in (wb.pipeline, load("jobs")):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
assert not [name for name in sys.modules if name.split(".")[0] in ("jobs", "pipeline")], "none by a plain name"
"""


@pytest.mark.parametrize(
    ("first", "names"),
    [("import pipeline, jobs; import wedlm_batch as wb", "RunConfig, SamplingParams"),
     (f"import wedlm_batch as wb; wb.run{_LOAD_ALL}", "*")],
    ids=["the user's", "all modules of ours"],
)  # fmt: skip
def test_both_packages_of_a_name_work_in_one_process_whichever_comes_first(
    first: str, names: str, tmp_path: Path
) -> None:
    code = f"""{first}
import pipeline, jobs
from pipeline import clean
from wedlm_batch import {names}
assert clean(" a ") == "a" and jobs.OWNER and not hasattr(pipeline, "run"), "the user's"
assert pipeline.__file__.endswith("pipeline.py")
config = RunConfig(input="x", output="y", sampling=SamplingParams(max_tokens=3))
print(RunConfig.__module__, SamplingParams.__module__.split(".")[0], wb.RunConfig is RunConfig is wb.pipeline.RunConfig)
from wedlm_core import SamplingParams as plain
assert plain is SamplingParams, "what nothing hides is there once"
"""
    done = run_python(make_folder(tmp_path / "project", *BOTH), "-c", code)
    assert printed(done) == "wedlm_batch.beside_pipeline.pipeline.config wedlm_core True"
    (line,) = (line for line in done.stderr.splitlines() if "has the name of our package 'pipeline'" in line)
    assert str(tmp_path / "project" / "pipeline.py") in line


def test_the_core_is_found_beside_a_module_of_its_name_with_all_that_imports_it(tmp_path: Path) -> None:
    code = """import wedlm_batch as wb, wedlm_core
assert wedlm_core.OWNER
print(wb.SamplingParams.__module__, wb.RunConfig.__module__, wb.jobs.__name__)"""
    core, config, jobs = printed(run_python(make_folder(tmp_path / "project", "wedlm_core"), "-c", code)).split()
    assert core.startswith("wedlm_batch.beside_wedlm_core.wedlm_core.")
    assert config == "wedlm_batch.beside_wedlm_core.pipeline.config"
    assert jobs == "wedlm_batch.beside_wedlm_core.jobs"


def test_a_module_that_only_workers_would_find_counts_since_pickles_name_modules(tmp_path: Path) -> None:
    script = make_folder(tmp_path / "scripts") / "script.py"
    script.write_text("import wedlm_batch as wb; print(wb.RunConfig.__module__, wb.jobs.__name__)")
    project = make_folder(tmp_path / "project", *BOTH)
    found = printed(run_python(project, str(script)))  # the script's folder is on the path, the working folder is not
    assert found == "wedlm_batch.beside_pipeline.pipeline.config wedlm_batch.beside_pipeline.jobs"


def test_workers_need_no_jobs_so_a_folder_of_that_name_that_only_they_would_find_hides_nothing(tmp_path: Path) -> None:
    script = make_folder(tmp_path / "scripts") / "script.py"
    script.write_text("import wedlm_batch as wb; print(wb.jobs.__name__)")
    done = run_python(make_folder(tmp_path / "project", "jobs/__init__"), str(script))
    assert (printed(done), done.stderr) == ("jobs", "")


def test_a_folder_without_an_init_hides_nothing(tmp_path: Path) -> None:
    for name in ("jobs", "pipeline"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nightly.py").write_text("")
    done = run_python(tmp_path, "-c", "import wedlm_batch as wb; print(wb.jobs.__name__, wb.pipeline.__name__)")
    assert (printed(done), done.stderr) == ("jobs pipeline", "")


def test_a_copy_of_ours_in_the_working_folder_hides_nothing(tmp_path: Path) -> None:
    """A clone whose wheel is installed: workers take the clone's code, under the plain names."""
    for package, mark in names.MARKS.items():
        file = tmp_path / package / mark
        file.parent.mkdir(parents=True)
        file.write_text("")
        (tmp_path / package / "__init__.py").write_text("")
    script = make_folder(tmp_path / "scripts") / "script.py"
    script.write_text("import wedlm_batch as wb; print(wb.pipeline.__name__)")
    done = run_python(tmp_path, str(script))
    assert (printed(done), done.stderr) == ("pipeline", "")


def test_every_mark_is_in_its_package() -> None:
    for package, mark in names.MARKS.items():
        assert (Path(__import__(package).__file__).parent / mark).is_file()


def test_a_removed_working_folder_hides_nothing(tmp_path: Path) -> None:
    code = (
        "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); import wedlm_batch as wb; print(wb.jobs)"
    )
    assert "jobs" in printed(run_python(tmp_path, "-c", code, environment={"PYTHONSAFEPATH": "1"}))


@pytest.mark.parametrize("hidden", ["pipeline", "wedlm_core"])
def test_a_plain_start_of_a_job_says_what_is_in_the_way_and_what_to_type(hidden: str, tmp_path: Path) -> None:
    project = make_folder(tmp_path / "project", hidden)
    done = run_python(project, "-m", "jobs.generate", "--help")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(project / f"{hidden}.py") in line
    assert "wedlm-batch" in line
    assert run_python(project, "-m", "wedlm_batch", "generate", "--help").returncode == 0


def test_a_plain_import_of_the_pipeline_beside_another_core_says_so(tmp_path: Path) -> None:
    done = run_python(make_folder(tmp_path / "project", "wedlm_core"), "-c", "import pipeline")
    assert "wedlm_core.py hides our package 'wedlm_core'" in done.stderr.splitlines()[-1]


def test_what_is_pickled_beside_other_modules_is_read_in_a_process_that_finds_them_first(tmp_path: Path) -> None:
    """As in a Ray worker: configuration, function and error arrive, and go back."""
    project = make_folder(tmp_path / "project", *BOTH)
    write = """import pickle, wedlm_batch as wb
import importlib
own = importlib.import_module(wb.pipeline.__name__ + ".cluster.prepare_task")
sent = (wb.RunConfig(input="x", output="y"), own.prepare_units, wb.SourceError("lost"), wb.SamplingParams(n=2))
open("sent", "wb").write(pickle.dumps(sent))"""
    read = """import pickle, pipeline
config, function, error, params = pickle.load(open("sent", "rb"))
assert pipeline.clean(" a ") == "a"
print(config.output, function.__globals__["Job"].__module__, type(error).__name__, params.n)
open("back", "wb").write(pickle.dumps((config, error)))"""
    printed(run_python(project, "-c", write))
    assert printed(run_python(project, "-c", read)) == "y wedlm_batch.beside_pipeline.pipeline.plan.job SourceError 2"
    assert printed(run_python(project, "-c", 'import pickle; print(pickle.load(open("back", "rb"))[0].output)')) == "y"
    config, *_ = pickle.loads((project / "sent").read_bytes())  # also where nothing hides ours
    assert type(config).__module__ == "wedlm_batch.beside_pipeline.pipeline.config"


def test_kernels_compiled_under_one_name_do_not_disturb_those_under_another(tmp_path: Path) -> None:
    """The cache of compiled kernels names the modules of its types."""
    code = """import importlib, numpy as np, wedlm_batch as wb
rings = importlib.import_module(wb.wedlm_core.__name__ + ".kernels.cpu.token_rings")
print(rings._oldest(rings.Rings(*[np.zeros(1, np.int64)] * 8), 0))"""
    caches = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "WEDLM_CACHE_HOME": str(tmp_path / "cache")}
    for folder in (make_folder(tmp_path / "empty"), make_folder(tmp_path / "project", "wedlm_core")):
        assert printed(run_python(folder, "-c", code, environment=caches)) == "0"
