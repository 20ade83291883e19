"""A user's files: the wheel, a folder that is not the clone, and in it ``pipeline.py`` and ``jobs/`` of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from testing.installed import Environment, build_wheel, make_environment
from testing.pages.blocks import blocks_of
from testing.repository import ROOT
from testing.users_folder import make_folder
from wedlm_base.version import VERSION
from wedlm_batch.console import COMMANDS

README = ROOT / "README.md"
MODULES = ("pipeline", "jobs/__init__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return make_environment(tmp_path_factory.mktemp("environment") / "venv", wheel)


def blocks(language: str) -> list[str]:
    """Contents of the README's blocks that are run."""
    return [block.code for block in blocks_of(README) if block.use == "run" and block.language == language]


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_wheel_holds_what_is_shipped_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {name.split("/")[0] for name in held} == {
        "jobs", "pipeline", "wedlm_base", "wedlm_batch", "wedlm_core", f"wedlm_batch-{VERSION}.dist-info",
    }  # fmt: skip
    assert {"wedlm_core/tiny/model.safetensors", "jobs/recipes/own.yaml", "jobs/data/demo_prompts.parquet"} <= held
    for package in ("jobs", "pipeline", "wedlm_base", "wedlm_batch", "wedlm_core"):
        sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert sources <= held
        assert f"{package}/py.typed" in held


_RIGHT = """\
import wedlm_batch as wb

result = wb.run(
    [{"prompt": "Count from 3 to 9."}],
    output="out",
    model="tiny",
    sampling=wb.SamplingParams(max_tokens=8, strategy="verified"),
    seed=3,
    actors={"min": 0, "max": 4},
    mode="new",
)
print(result.summary.total.rows, result.to_pandas().shape)
texts: list[str] = [one.text for one in wb.LLM("tiny").generate(["a"], wb.SamplingParams(max_tokens=8))]
print(texts, wb.__version__, wb.pipeline.status("out")["rows_failed"])
"""
_WRONG = {
    'wb.run("in.jsonl", output="out", modle="tiny")': "Unexpected keyword argument",
    'wb.run("in.jsonl", output="out", limit="3")': "incompatible type",
    'wb.run("in.jsonl", output="out", mode="newly")': "incompatible type",
    "wb.SamplingParams(temprature=0.5)": "Unexpected keyword argument",
    'wb.rnu("in.jsonl", output="out")': "has no attribute",
    'wb.LLM("tiny").generate(["a"])[0].txt': "has no attribute",
    'wb.LLM("tiny", max_num_seq=8)': "Unexpected keyword argument",
    'wb.chain([{"name": "a"}], input="in.jsonl", output="out", modle="tiny")': "Unexpected keyword argument",
    'wb.stage(modle="tiny")': "Unexpected keyword argument",
    'wb.compare("out", "out").speeed': "has no attribute",
}
_FOLLOWED = """\
[mypy]
strict = true
follow_imports = skip
[mypy-numpy.*,pandas.*,yaml.*,torch.*]
follow_imports_for_stubs = true
[mypy-wedlm_batch.*,pipeline,pipeline.errors,pipeline.config,pipeline.codec,pipeline.settings.*,pipeline.commands.*,\
pipeline.progress.*,pipeline.reporting.comparison,wedlm_core,wedlm_core.errors,wedlm_core.llm,wedlm_core.types,\
wedlm_core.structured_outputs,wedlm_core.option_names,wedlm_core.evidence,wedlm_core.statistics,\
wedlm_core.sampling_params,wedlm_core.config.*]
follow_imports = silent
"""
"""The modules that public types are in: reading everything they import takes half a minute of a processor."""


def test_the_sdist_has_no_files_of_a_checkout(wheel: Path) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "pyproject.toml", "wedlm_core/tiny/model.safetensors"} <= held
    assert not [name for name in held if name.startswith(("tests", "testing", "benchmarks", "out", "."))]


def test_a_strict_type_checker_sees_mistakes_in_a_users_script_and_no_others(
    installed: Environment, tmp_path: Path
) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (extra dev)")
    (tmp_path / "right.py").write_text(_RIGHT)
    (tmp_path / "wrong.py").write_text("import wedlm_batch as wb\n" + "\n".join(_WRONG) + "\n")
    (tmp_path / "mypy.ini").write_text(_FOLLOWED)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        "mypy.ini",
        "--cache-dir",
        "cache",
        "right.py",
        "wrong.py",
    ]
    done = installed.run(tmp_path, *command, "--python-executable", str(installed.python))
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.partition(": error: ")[0] for line in errors] == [f"wrong.py:{2 + i}" for i in range(len(_WRONG))]
    assert all(words in line for line, words in zip(errors, _WRONG.values(), strict=True)), errors


def test_every_sub_command_is_found_beside_the_users_modules(installed: Environment, tmp_path: Path) -> None:
    project = make_folder(tmp_path / "project", *MODULES)
    assert succeeded(installed.run(project, "wedlm-batch", "--version")) == f"wedlm-batch {VERSION}\n"
    listed = succeeded(installed.run(project, "wedlm-batch", "--help"))
    assert all(command in listed for command in COMMANDS)
    for start in (["wedlm-batch"], [str(installed.python), "-m", "wedlm_batch"]):
        done = installed.run(project, *start, "status", "nothing")
        assert done.returncode == 2
        assert "no run was begun" in done.stderr.splitlines()[-1]
        assert str(project / "pipeline.py") in done.stderr, "modules with our name are named"


def test_the_commands_of_the_readme_run(installed: Environment, tmp_path: Path) -> None:
    project = make_folder(tmp_path / "project", *MODULES)
    script = [line for block in blocks("bash") for line in block.splitlines()]
    assert [line.split()[1] for line in script if line.startswith("wedlm-batch")] == ["generate", "status", "verify"]
    printed = succeeded(installed.run(project, "bash", "-e", "-c", "\n".join(script), OMP_NUM_THREADS="1"))
    assert "Rows: 1, 1 ok, 0 failed" in printed
    assert printed.splitlines()[-1] == "proven"


def test_the_python_blocks_of_the_readme_run_with_the_users_own_modules(installed: Environment, tmp_path: Path) -> None:
    project = make_folder(tmp_path / "project", *MODULES)
    (project / "out" / "demo").mkdir(parents=True)  # where `make demo` wrote before
    (project / "out" / "demo" / "part.parquet").write_bytes(b"somebody's table")
    written = blocks("python")
    assert written
    (project / "script.py").write_text(
        "import pipeline, jobs\n"
        + "\n".join(written)
        + "\nprint('rows', result.summary.total.rows, pipeline.clean(' mine '), jobs.OWNER)"
        + "\nprint('home', wb.__file__, wb.pipeline.__file__)\n"
    )
    done = installed.run(project, str(installed.python), "script.py", OMP_NUM_THREADS="1")
    printed = succeeded(done)
    assert "rows 2 mine the user" in printed
    assert "x = 7" in printed, "the streamed equation"
    assert printed.splitlines()[-1].count(str(installed.packages)) == 2


@pytest.mark.slow(reason="compiles all kernels: 20 s of a processor")
@pytest.mark.timeout(1300)
def test_a_read_only_installation_and_home_generate(wheel: Path, tmp_path: Path) -> None:
    made = make_environment(tmp_path / "venv", wheel)
    core = made.packages / "wedlm_core"
    for folder in [core, *(path for path in core.rglob("*") if path.is_dir() and path.name != "__pycache__")]:
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        (folder / "__pycache__").write_text("in the way of a folder")  # as root, permissions would not be
    project = make_folder(tmp_path / "project", *MODULES)
    (project / "in.jsonl").write_text('{"prompt": "Count from 3 to 9."}\n')
    (tmp_path / "tmp").mkdir()
    variables = {"HOME": "/proc/nowhere", "TMPDIR": str(tmp_path / "tmp"), "RAY_TMPDIR": "/tmp"}
    variables |= dict.fromkeys(("WEDLM_CACHE_HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), "")
    for command in (["preview", "--rows", "1"], ["generate", "--output", "out"]):
        done = made.run(
            project, "wedlm-batch", *command, "--input", "in.jsonl", "--model", "tiny", "--max-tokens", "32",
            timeout=600, **variables,
        )  # fmt: skip
        assert ("1 ok, 0 failed" if command[0] == "generate" else "3, 4, 5, 6, 7, 8, 9") in succeeded(done)
        if command[0] == "preview":
            kernels, costs = (line for line in done.stderr.splitlines() if "cannot be written to" in line)
            assert str(tmp_path / "tmp") in kernels
            assert str(tmp_path / "tmp") in costs


@pytest.mark.slow(reason="downloads and installs everything it depends on: minutes, and a network")
@pytest.mark.timeout(3000)
def test_pip_installs_into_an_empty_environment(tmp_path: Path) -> None:
    source = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    made = Environment(folder=tmp_path / "venv")
    command = [str(made.python), "-m", "pip", "install", "--quiet", "-c", "constraints.txt", "."]  # as in the README
    succeeded(made.run(source, *command, timeout=2900))
    project = make_folder(tmp_path / "project", *MODULES)
    (project / "in.jsonl").write_text('{"prompt": "Count from 3 to 9."}\n')
    command = ["wedlm-batch", "generate", "--input", "in.jsonl", "--output", "out", "--model", "tiny"]
    assert "Rows: 1, 1 ok, 0 failed" in succeeded(made.run(project, *command))
