"""Mistakes of new users, over a hundred: each answer is soon there, fits a screen, and names value, rule and remedy.

A mistake in a run is refused by ``--validate`` and by the run, in the same words and before Ray starts.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline
from jobs import calibrate, evaluate, generate, status, train, verify
from pipeline.cluster.executor import RayExecutor
from pipeline.commit import lease
from pipeline.storage import retry
from testing.pipeline.s3 import S3Server
from testing.pipeline.user_folder import make_folder
from testing.repository import ROOT
from wedlm_core.errors import WeDLMError

SECONDS, LINES, WIDTH = 10, 24, 160
GOOD = "--input good.parquet --output out --model m --set sampling.max_tokens=8"

# Options beside those of GOOD, and words of the answer: of the value, the rule and the remedy.
RUNS = {
    # values
    "--actors 0": ("actors=0", "1 or more", "Give a count"),
    "--set actors=two": ("actors='two'", "an integer", "Give a count"),
    "--set seed=-1": ("seed=-1", "in [0, 2**63)", "Pick one in range"),
    "--set device=gpu": ("device='gpu'", '"cuda:N"', 'Use "auto"'),
    "--set dtype=fp4": ("dtype='fp4'", "bfloat16", "Pick one"),
    "--set sampling.temperature=hot": ("temperature='hot'", "finite number", "Use 0 for greedy"),
    "--set sampling.temperature=-1": ("temperature=-1", "0 or more", "Use 0 for greedy"),
    "--set sampling.top_p=1.5": ("top_p=1.5", "(0, 1]", "Use 1.0"),
    "--set sampling.max_tokens=-1": ("max_tokens=-1", "0 or more", "Give a count"),
    "--set sampling.n=0": ("n=0", "1 or more", "Set how many"),
    "--set sampling.strategy=fast": ("strategy='fast'", "one of ['verified'", "Pick one"),
    "--set sampling.window_size=0": ("window_size=0", "1 or more", "autoregressive"),
    "--set sampling.stop=5": ("stop=5", "strings of 1 to 4096", "Pass a string"),
    "--set sampling.max_tokns=3": ("'sampling.max_tokns'", "no such field", "Did you mean 'sampling.max_tokens'?"),
    "--set temprature=1": ("'temprature'", "no such field", "Did you mean 'sampling.temperature'?"),
    "--set sampling=fast": ("sampling='fast'", "a mapping of fields", "Write name: value"),
    "--set engine.page_size=48": ("page_size=48", "power of two", "Use 64"),
    "--set engine.max_window=999999": ("max_window=999999", "4096 at most", "Drop it"),
    "--set engine.attention=flash": ("engine.attention='flash'", "one of [", 'Use "auto"'),
    "--set engine.attention=flash-attn": ("attention='flash-attn'", "runs on CUDA devices", 'attention="auto"'),
    "--set engine.attention=sdpa --set engine.batch_invariant=true": (
        "attention='sdpa'",
        "not batch invariant",
        "or set batch_invariant=False",
    ),
    "--set engine.history_bytes=1000": ("history_bytes=1000", "at least", "history_drafts=False"),
    "--set engine.attention=compiled --set device=cuda": ("engine.attention='compiled'", "on CPU only", 'Use "auto"'),
    "--set engine.max_model_len=4096": ("max_model_len=4096", "at most 512", "Lower it"),
    "--set actors": ("--set 'actors'", "must be FIELD=VALUE", "for example"),
    "--set 'a=[1,'": ("--set 'a'", "not YAML", "Quote it"),
    "--set =3": ("--set (not shown)", "must be FIELD=VALUE", "for example"),
    "--limit 0": ("limit=0", "1 or more", "Drop it"),
    "--max-failed-fraction 2": ("max_failed_fraction=2", "between 0 and 1", "Use 1 to never stop"),
    "--max-row-deaths 0": ("max_row_deaths=0", "1 or more", "Use 2"),
    "--set unit_rows=0": ("unit_rows=0", "1 or more", "Drop it"),
    "--set columns=prompt": ("columns='prompt'", "a list of names", "Use [name]"),
    "--set sampling_columns=[max_tokens]": ("['max_tokens']", "a mapping", "Write {max_tokens: my_column}"),
    "--set sampling_columns.colour=k": ("['colour']", "keys are sampling parameters", "Map a parameter to a column"),
    "--set model=": ("--model and --set model", "two values", "Leave out one"),
    "--temperature 0 --set sampling.temperature=1": ("--set sampling.temperature", "two values", "Leave out one"),
    "--schema nowhere.json": ("nowhere.json", "cannot be read", "Write {json"),
    "--schema '{'": ("not JSON", "Pass a JSON schema"),
    "--schema '{}' --choices a": ("json, choice", "exactly one of", "Give one"),
    "--n 0": ("n=0", "1 or more", "Set how many"),
    "--top-p 0": ("top_p=0", "(0, 1]", "Use 1.0"),
    "--retry-failed --mode new": ("retry_failed", "mode='new' discards", "Drop one of the two"),
    "--repair --mode new": ("repair", "mode='new' discards", "Drop one of the two"),
    "--prompt-column prompt --prompt-template '{{ k }}'": ("prompt_template", "at most one", "Keep the one"),
    # templates and columns
    "--prompt-template '{prompt}'": ("'{prompt}'", "uses no column", "{{ prompt }}"),
    "--prompt-template 'Count from 1 to 5.'": ("'Count from 1 to 5.'", "uses no column", "two braces"),
    "--prompt-template '{{ prompt'": ("'{{ prompt'", "not a Jinja template", "Correct it"),
    "--prompt-template '{{ question }}'": ("['question']", "no such columns", "name some of them"),
    "--prompt-template '{{ prompt.missing }}'": ("no attribute 'missing'", "all 4 sampled rows would fail", "Correct"),
    "--input questions.parquet": ("['question']", "no column prompt", "Set prompt_column"),
    "--prompt-column question": ("'question'", "no such column", "name one of them"),
    "--set messages_column=chats": ("'chats'", "no such column", "name one of them"),
    "--set tools_column=tools": ("'tools'", "no such column", "name one of them"),
    "--set columns=[prompt,colour]": ("'colour'", "no such column", "name one of them"),
    "--id-column id": ("'id'", "no such column", "name one of them"),
    "--input two.parquet": ("['prompt', 'messages']", "which one is the prompt", "Set prompt_column"),
    "--input taken.parquet": ("['text']", "names of output columns", "Set column_prefix"),
    "--input nulls.parquet": ("prompt=''", "all 4 sampled rows would fail", "Fill it in"),
    "--input numbers.parquet": ("prompt=1", "a prompt is text", "Cast the column"),
    "--input talk.parquet": ("messages='hello'", "not JSON", "Write a list of mappings"),
    "--input ids.parquet": ("prompt_token_ids[1]=5000", "ids are in [0, 336)", "tokenizer of this model"),
    # parameters that all rows would be refused for
    "--set sampling_columns.max_tokens=tokens": ("'tokens'", "no such column", "name one of them"),
    "--input own.parquet --set sampling_columns.max_tokens=max_tokens": ("'many'", "an integer", "Give a count"),
    "--input own.parquet --set sampling_columns.temperature=temperature": ("-1.0", "0 or more", "Use 0"),
    "--input own.parquet --set sampling_columns.seed=noise": ("seed=-5", "[0, 2**63)", "pick one in range"),
    "--input own.parquet --set sampling_columns.window_size=window": ("100", "max_window = 32", "Lower window_size"),
    "--input own.parquet --set sampling_columns.max_tokens=long": ("+ 5000", "at most 512", "lower max_tokens"),
    "--set sampling.max_tokens=600": ("+ 600", "at most 512", "lower max_tokens"),
    "--set sampling.window_size=64": ("window_size=64", "max_window = 32", "Lower window_size"),
    "--set sampling.stop_token_ids=[999]": ("stop_token_ids=999", "ids are in [0, 336)", "tokenizer of this model"),
    "--set engine.num_pages=1 --set sampling.max_tokens=300": ("30", "holds 64 tokens", "Raise num_pages"),
    "--set engine.kv_cache_bytes=9000 --set sampling.max_tokens=300": ("30", "holds ", "Raise num_pages or kv_cache"),
    # inputs
    "--input nowhere.parquet": ("'nowhere.parquet'", "no file is there", "Check the path"),
    "--input nowhere": ("'nowhere'", "no such file or folder", "Check the path"),
    "--input 'nothing-*.jsonl'": ("'nothing-*.jsonl'", "no file is there", "Check the path"),
    "--input bare": ("'bare'", "no file is there", "Check the path"),
    "--input mixed": ("'mixed'", "Parquet and JSON Lines", "Name one by a glob"),
    "--input notes.txt": ("'notes.txt'", "unknown suffix", "Rename or convert it"),
    "--input none.parquet": ("'none.parquet'", "it has no rows", "one row at least"),
    "--input blank.jsonl": ("blank.jsonl", "it has no rows", "one row at least"),
    "--input head.csv": ("'head.csv'", "it has no rows", "one row at least"),
    "--input empty.csv": ("empty.csv", "no header", "names the columns"),
    "--input words.jsonl": ("words.jsonl", "no row is a JSON object", "one object per line"),
    "--input same.csv": ("['prompt', 'prompt']", "header", "each once"),
    "--input cut.parquet": ("cut.parquet", "cannot be read", "Correct or remove it"),
    "--input plain.jsonl.gz": ("plain.jsonl.gz", "cannot be read", "Correct or remove it"),
    "--input data --output data/out": ("output='data/out'", "lies inside input='data'", "Write elsewhere"),
    "--output gopher://host/out": ("'gopher://host/out'", "Protocol not known", "Check the scheme"),
    # models
    "--model ./nowhere": ("'./nowhere'", "no such folder", "Check the path"),
    "--model bare": ("'bare'", "no config.json", "Hugging Face layout"),
    "--model llama": ("model_type='llama'", "one of wedlm, qwen2, qwen3", "Convert the checkpoint"),
    "--model wide": ("'wide'", "misshapen", "Correct config.json"),
    "--model deep": ("'deep'", "missing model.layers.2", "Correct config.json"),
    "--model scaled": ("longrope", "only default and yarn", "Remove rope_scaling"),
    "--model sliding": ("use_sliding_window=True", "not implemented", "Set it to false"),
    "--model huge": ("vocab_size=1000000000", "at most", "Correct config.json"),
    "--model unconfigured": ("'unconfigured'", "no config.json", "Hugging Face layout"),
    "--model halfconfig": ("halfconfig/config.json", "not readable JSON", "Download it again"),
    "--model wordless": ("'wordless'", "no tokenizer.json", "Save its fast tokenizer"),
    "--model garbled": ("'garbled'", "tokenizer cannot be read", "Download it again"),
    "--model weightless": ("'weightless'", "no weights", "Convert the checkpoint"),
    "--model renamed": ("weights.safetensors", "neither model.safetensors nor", "Rename the file"),
    "--model truncated": ("truncated/model.safetensors", "not a whole safetensors file", "Download it again"),
    "--model stub": ("stub/model.safetensors", "not a whole safetensors file", "Download it again"),
    "--model longer": ("longer/model.safetensors", "not a whole safetensors file", "Download it again"),
    "--model misnamed": ("unexpected modle.layers.0", "missing model.layers.0", "convert the checkpoint"),
    "--model unsharded": ("['model-2.safetensors']", "absent", "Download them"),
    "--model unindexed": ("model.safetensors.index.json", "a JSON object is expected", "Download it again"),
    "--model misindexed": ("unexpected model.extra.weight", "missing model.embed_tokens", "Correct config.json"),
    "--model untemplated --chat": ("'untemplated'", "need a chat template", "Drop them, or add"),
    "--set revision=main": ("revision='main'", "only hub ids have revisions", "Drop it"),
    # resources
    "--set device=cuda": ("device='cuda'", "no GPU here", 'Use "cpu" or "auto"'),
    "--set gpus_per_actor=1": ("1 GPU each", "has room for 0", "Lower actors, gpus_per_actor"),
    "--set cpus_per_actor=500": ("500 CPU", "has room for 0", "cpus_per_actor"),
    "--actors 6400": ("actors=6400", "enough for", "Lower actors"),
    # outputs
    "--output begun --set seed=7": ("seed: was 0, is 7", "begun with other settings", "discard the output"),
    "--output begun --model untemplated": ("'untemplated@", "begun with other settings", "Go back to them"),
    "--output begun --prompt-template '{{ k }}'": ("'{{ k }}'", "begun with other settings", "another folder"),
    "--output begun --output-format jsonl": ("is 'jsonl'", "begun with other settings", "another folder"),
    "--output begun --limit 2": ("limit: was None, is 2", "begun with other settings", "another folder"),
    "--output changed --input renewed.parquet": ("renewed.parquet", "chang", "folder"),
    "--output begun --mode error_if_exists": ("begun", "a run was begun there", "Use mode='resume'"),
    "--output stateless": ("part-000000.parquet", "files of another program", "Write to an empty folder"),
    "--output damaged": ("part-000000.parquet", "damaged", "--repair"),
}
# The same, of checks that are left to the run, or made before options are looked at.
ONLY_RUNS = {
    "--input twice.parquet --id-column id": ("rows 1 and 2", "have the same id", "Make ids unique"),
    "--input holes.parquet --id-column id": ("None in row 1", "is not an id", "never null"),
    "--preview 0": ("rows=0", "at least 1", "Ask for more"),
    "--estimate 0": ("rows=0", "at least 1", "Ask for more"),
    "--input none.parquet --preview 2": ("'none.parquet'", "it has no rows", "one row at least"),
    "--input none.parquet --estimate": ("'none.parquet'", "it has no rows", "one row at least"),
    "--model truncated --preview 2": ("truncated/model.safetensors", "not a whole safetensors", "Download it"),
    "--modle tiny": ("--modle", "unrecognized", "did you mean --mode or --model?"),
    "more.parquet": ("values without an option", "unrecognized", "--help"),
    "--actors two": ("--actors", "must be a number or a range", "--help"),
    "--mode again": ("--mode", "choose from", "--help"),
    "--output-format csv": ("--output-format", "choose from", "--help"),
    "--on-long-prompt cut": ("--on-long-prompt", "choose from", "--help"),
    "--limit": ("--limit", "expected one argument", "--help"),
    "--storage-options 5": ("--storage-options", "must be a mapping", "Write for example"),
}
FILES = {
    "nowhere.yaml": ("nowhere.yaml", "cannot be read", "Give a YAML file"),
    "bare": ("bare", "cannot be read", "Give a YAML file"),
    "list.yaml": ("list.yaml", "must be a mapping", "Write name: value"),
    "broken.yaml": ("broken.yaml", "line 2", "Correct it"),
    "binary.yaml": ("binary.yaml", "not YAML", "Correct it"),
    "chain.yaml": ("stages", "a setting of the command chain only", "Give the file to that"),
    "typo.yaml": ("'sampling.temprature'", "no such field", "Did you mean 'sampling.temperature'?"),
    "flat.yaml": ("'max_token'", "no such field", "Did you mean 'sampling.max_tokens'?"),
    "number.yaml": ("sampling=3", "a mapping of fields", "Write name: value"),
    "null.yaml": ("actors=None", "an integer", "Give a count"),
}
OTHERS: list[tuple[Callable[[list[str]], Any], str, tuple[str, ...]]] = [
    (status.main, "bare", ("bare", "no run was begun there", "Check the path")),
    (verify.main, "bare", ("bare", "no run was begun there", "Check the path")),
    (verify.main, "begun --input nowhere.parquet", ("'nowhere.parquet'", "no file is there", "Check the path")),
    (calibrate.main, "--input good.parquet --model m --floor 2", ("floor=2", "(0, 1]", "Ask for example for 0.98")),
    (
        calibrate.main,
        "--input good.parquet --model m --floor 0.9 --strategy verified",
        ("'verified'", "one of", "Pick"),
    ),
    (calibrate.main, "--input good.parquet --model m", ("--floor", "required", "--help")),
    (calibrate.main, "--input none.parquet --model m --floor 0.9", ("it has no rows", "one row at least")),
    (evaluate.main, "--input good.parquet --model m", ("--answer-column", "--scorer", "required", "--help")),
    (evaluate.main, "--output o --answer-column a --scorer exact", ("input not given", "Use --input")),
    (generate.main, "--output o", ("input not given", "Use --input")),
    (generate.main, "--input i", ("output not given", "Use --output")),
    (train.main, "--recipe huge", ("'huge'", "no such file", "The shipped one is")),
    (train.main, "--set run.step=3", ("recipe.run=['step']", "known are", "Correct the recipe")),
]
PYTHON: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
    (lambda: pipeline.run(output="o", model="m"), ("input", "missing", "Known fields")),
    (lambda: pipeline.run("good.parquet", output="o"), ("model not given", "a hub id", "Name a folder")),
    (lambda: pipeline.run([], output="o", model="m"), ("of type list", "it has no rows", "one row at least")),
    (lambda: pipeline.run(5, output="o", model="m"), ("int", "not a known kind", "Pass a path")),
    (lambda: pipeline.run([{"q": "a"}], output="o", model="m"), ("['q']", "no column prompt", "Set prompt_column")),
    (lambda: pipeline.run("good.parquet", output=None, model="m"), ("output", "missing", "Known fields")),
    (lambda: pipeline.run("good.parquet", output="o", temprature=1), ("'temprature'", "no such field", "Did you mean")),
    (lambda: pipeline.run("good.parquet", output="o", model="m", sampling=5), ("sampling=5", "a mapping", "Write")),
    (lambda: pipeline.read("bare"), ("bare", "nothing is published", "run")),
    (lambda: pipeline.preview(pipeline.RunConfig(input="good.parquet", output="o"), rows=0), ("rows=0", "at least 1")),
    (lambda: pipeline.SamplingParams(max_tokens=0.5), ("max_tokens=0.5", "an integer", "Give a count")),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, qwen3_folder: Path) -> Iterator[Path]:
    """The working folder; no waiting for other processes, and no Ray."""
    root = tmp_path_factory.mktemp("user")

    def start(executor: RayExecutor, *_: object) -> None:
        pytest.fail("Ray was about to be started")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        if (ray := sys.modules.get("ray")) is not None:  # tests before these may have left a session
            patch.setattr(ray, "is_initialized", lambda: False)
        patch.setattr(lease, "_SETTLE_SECONDS", 0.0)
        patch.setattr(retry, "_FIRST_WAIT_SECONDS", 0.0)
        patch.setattr(RayExecutor, "run_units", start)
        make_folder(root, qwen3_folder)
        yield root


@pytest.fixture(scope="module")
def store(s3: S3Server) -> S3Server:
    """An object store with an empty bucket."""
    s3.bucket("empty-bucket")
    return s3


def answer(main: Callable[[list[str]], Any], argv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int | str, str]:
    """Exit status and output of a command that answers as every command should."""
    begin = time.monotonic()
    try:
        code = main(shlex.split(argv))
    except SystemExit as end:
        code = end.code
    printed = "".join(capsys.readouterr()) + (code if isinstance(code, str) else "")
    check_form(printed, time.monotonic() - begin)
    return (1 if isinstance(code, str) else code), printed


def check_form(text: str, seconds: float) -> None:
    """No traceback, one screen, soon."""
    assert "Traceback" not in text
    assert sum(1 + len(line) // WIDTH for line in text.splitlines()) <= LINES, text
    assert seconds < SECONDS


def check_words(text: str, words: tuple[str, ...]) -> None:
    flat = " ".join(text.split())
    absent = [word for word in words if word not in flat]
    assert not absent, f"{absent} not in: {text}"


def test_there_are_a_hundred() -> None:
    assert sum(map(len, (RUNS, ONLY_RUNS, FILES, OTHERS, PYTHON))) >= 100


@pytest.mark.parametrize("options", RUNS)
def test_a_run_and_its_validation_refuse_in_the_same_words(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ("", " --validate"):
        code, printed = answer(generate.main, f"{GOOD} {options}{more}", capsys)
        assert code == 2, printed
        check_words(printed, RUNS[options])


@pytest.mark.parametrize(
    ("options", "words"),
    [("--input s3://empty-bucket/none.parquet", ("'s3://empty-bucket/none.parquet'", "no file is there", "Check the")),
     ("--input s3://no-bucket-here/none.parquet", ("s3://no-bucket-here", "does not exist", "Check the")),
     ("--output s3://no-bucket-here/out", ("s3://no-bucket-here/out", "does not exist", "Check path")),
     ("--model s3://empty-bucket/m", ("'s3://empty-bucket/m'", "no model files there", "It needs some of"))],
)  # fmt: skip
def test_an_object_store_is_asked(
    options: str, words: tuple[str, ...], store: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = "{key: test, secret: test, endpoint_url: '" + store.endpoint + "'}"
    for more in ("", " --validate"):
        code, printed = answer(
            generate.main, f"{GOOD} {options} --storage-options {shlex.quote(storage)}{more}", capsys
        )
        assert code == 2, printed
        check_words(printed, words)


@pytest.mark.parametrize("options", ONLY_RUNS)
def test_a_run_refuses(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = answer(generate.main, f"{GOOD} {options}", capsys)
    assert code == 2, printed
    check_words(printed, ONLY_RUNS[options])


@pytest.mark.parametrize("file", FILES)
def test_a_configuration_file_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = answer(generate.main, f"--config {file}", capsys)
    assert code == 2, printed
    check_words(printed, FILES[file])


@pytest.mark.parametrize(
    ("main", "argv", "words"), OTHERS, ids=[f"{main.__module__} {argv}" for main, argv, _ in OTHERS]
)
def test_another_command_refuses(
    main: Callable[[list[str]], Any], argv: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = answer(main, argv, capsys)
    assert code == 2, printed
    check_words(printed, words)


@pytest.mark.parametrize(("call", "words"), PYTHON, ids=[" ".join(words) for _, words in PYTHON])
def test_python_raises_one_line(call: Callable[[], Any], words: tuple[str, ...]) -> None:
    begin = time.monotonic()
    with pytest.raises((pipeline.PipelineError, WeDLMError)) as caught:
        call()
    check_form(str(caught.value), time.monotonic() - begin)
    check_words(str(caught.value), words)


def test_a_refused_run_can_be_corrected_without_another_output(capsys: pytest.CaptureFixture[str]) -> None:
    refused = GOOD.replace("output out", "output corrected")
    assert answer(generate.main, f"{refused} --prompt-template '{{{{ prompt.missing }}}}'", capsys)[0] == 2
    assert answer(generate.main, f"{refused} --validate", capsys)[0] == 0


def test_more_actors_than_units_are_said_and_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = answer(generate.main, f"{GOOD} --actors 2 --validate", capsys)
    assert code == 0
    check_words(printed, ("actors=2", "make 1 unit", "so 1 will be started", "Lower actors"))


@pytest.mark.parametrize("options", ["", "--model truncated"])
def test_a_process_of_its_own_answers_as_soon(options: str, folder: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "jobs.generate", *shlex.split(f"{GOOD} --validate {options}")],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of the processor, which a busy machine does not prolong.
    check_form(done.stdout + done.stderr, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert done.returncode == (2 if options else 0)
