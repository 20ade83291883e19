"""A folder as a new user has it: good and bad inputs, good and bad models, and an output that was begun."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.codec import SamplingParams
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.storage.open import open_storage
from testing.pipeline.fakes import InlineExecutor

_ROWS = [{"prompt": f"Count from {i} to {i + 3}.", "topic": f"t{i % 2}", "k": i} for i in range(4)]


def make_folder(root: Path, model: Path) -> None:
    """Fill ``root``, the working folder; ``model`` is a good model of 512 positions and 336 ids."""
    _inputs(root)
    _models(root, model)
    shutil.copy(root / "good.parquet", root / "renewed.parquet")
    for name, source in (("begun", "good"), ("damaged", "good"), ("changed", "renewed")):
        run = RunConfig(input=f"{source}.parquet", output=name, model="m", sampling=SamplingParams(max_tokens=8))
        run_on(InlineExecutor(), run, open_storage(run.output, layout.SCRATCH), lambda progress: None)
    for part in (root / "damaged").glob("data-*/part-*"):
        part.write_bytes(part.read_bytes()[:-100])
    pq.write_table(pa.Table.from_pylist([{**row, "k": 7} for row in _ROWS]), root / "renewed.parquet")
    shutil.copytree(root / "begun", root / "stateless")
    shutil.rmtree(root / "stateless" / layout.STATE)


def _inputs(root: Path) -> None:
    def parquet(name: str, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> None:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), root / f"{name}.parquet")

    def column(name: str, **values: Any) -> None:
        parquet(name, [{**row, **{key: value[i] for key, value in values.items()}} for i, row in enumerate(_ROWS)])

    parquet("good", _ROWS)
    parquet("none", [], pa.schema([("prompt", pa.string())]))
    parquet("questions", [{"question": row["prompt"]} for row in _ROWS])
    column("two", messages=[[{"role": "user", "content": "x"}]] * 4)
    column("taken", text=["a"] * 4)
    column("twice", id=[1, 2, 2, 3])
    column("holes", id=["a", None, "b", "c"])
    column("nulls", prompt=["", None, "", None])
    column("numbers", prompt=[1, 2, 3, 4])
    column("own", max_tokens=["many"] * 4, temperature=[-1.0] * 4, noise=[-5] * 4, window=[100] * 4, long=[5000] * 4)
    parquet("talk", [{"messages": "hello"}, {"messages": "[1, 2]"}])
    parquet("ids", [{"prompt_token_ids": [10, 5000]}, {"prompt_token_ids": [-1]}])
    texts = {
        "notes.txt": "a prompt", "blank.jsonl": "", "words.jsonl": "hello\nworld\n", "head.csv": "prompt,k\n",
        "empty.csv": "", "same.csv": "prompt,prompt\na,b\n", "plain.jsonl.gz": '{"prompt": "a"}\n',
        "cut.parquet": "PAR1 and nothing", "list.yaml": "- 1\n", "broken.yaml": "sampling: {max_tokens: [1\n",
        "chain.yaml": "input: good.parquet\noutput: out\nmodel: m\nstages: [{name: a}, {name: b}]\n",
        "typo.yaml": "input: good.parquet\noutput: out\nmodel: m\nsampling: {temprature: 0.5}\n",
        "flat.yaml": "input: good.parquet\noutput: out\nmodel: m\nmax_token: 5\n",
        "number.yaml": "input: good.parquet\noutput: out\nmodel: m\nsampling: 3\n",
        "words.yaml": 'input: good.parquet\noutput: out\nmodel: m\nactors: "two"\n',
        "pairs.yaml": "input: good.parquet\noutput: out\nmodel: m\nsampling_columns: [max_tokens]\n",
        "text.yaml": "input: good.parquet\noutput: out\nmodel: m\ncolumns: prompt\n",
        "null.yaml": "input: good.parquet\noutput: out\nmodel: m\nactors:\n",
    }  # fmt: skip
    for name, text in texts.items():
        (root / name).write_text(text)
    (root / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("mixed", "bare", "data"):
        (root / name).mkdir()
    (root / "mixed" / "a.jsonl").write_text('{"prompt": "a"}\n')
    shutil.copy(root / "good.parquet", root / "mixed" / "b.parquet")
    shutil.copy(root / "good.parquet", root / "data" / "a.parquet")
    whole = gzip.compress(b'{"prompt": "a"}\n' * 1000)
    (root / "short.jsonl.gz").write_bytes(whole[: len(whole) // 2])


def _models(root: Path, good: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(good, root / name))

    def settings(name: str, **values: Any) -> None:
        path = copy(name) / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    copy("m")
    settings("llama", model_type="llama", architectures=["LlamaForCausalLM"])
    settings("wide", hidden_size=48)
    settings("deep", num_hidden_layers=4)
    settings("scaled", rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "factor": 2.0})
    settings("sliding", use_sliding_window=True)
    settings("huge", vocab_size=10**9)
    (copy("unconfigured") / "config.json").unlink()
    (copy("halfconfig") / "config.json").write_text('{"model_type": "qwen3",')
    (copy("wordless") / "tokenizer.json").unlink()
    (copy("garbled") / "tokenizer.json").write_text('{"model": {}}')
    (copy("weightless") / "model.safetensors").unlink()
    (copy("untemplated") / "tokenizer_config.json").write_text("{}")
    renamed = copy("renamed")
    (renamed / "model.safetensors").rename(renamed / "weights.safetensors")
    for name, change in (("truncated", lambda data: data[:-1000]), ("stub", lambda data: data[:100]),
                         ("longer", lambda data: data + b"more"), ("misnamed", _misnamed)):  # fmt: skip
        path = copy(name) / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))
    index = "model.safetensors.index.json"
    (copy("unsharded") / index).write_text(json.dumps({"weight_map": {"model.norm.weight": "model-2.safetensors"}}))
    (copy("unindexed") / index).write_text("[]")
    everywhere = {"model.norm.weight": "model.safetensors", "model.extra.weight": "model.safetensors"}
    (copy("misindexed") / index).write_text(json.dumps({"weight_map": everywhere}))


def _misnamed(data: bytes) -> bytes:
    """Safetensors whose tensors have another prefix of the same length."""
    return data.replace(b'"model.layers', b'"modle.layers')
