"""Other engines on a GPU. Each is a program for an interpreter that has this engine, and needs nothing of this project.

A program is started as ``python FILE FOLDER TASK``. The folder has the ``config.json`` of a Qwen model, and its
weights unless these are random. The task is the fields of :class:`Task` as JSON. The program decodes the rows, and
prints a line of JSON:
``{"version": ..., "seconds": wall clock of prefill and decoding, "tokens": generated ones}``.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wedlm_core import ModelConfig

PROGRAMS = {"vllm": ("vllm_peer.py", ("bfloat16", "fp8")),
            "transformers": ("transformers_peer.py", ("continuous batching", "static cache, compiled"))}  # fmt: skip
"""Option that names the interpreter -> file of the program, and its ways."""
_OWN_FIELDS = ("qk_norm", "mask_token_id")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job of rows of one length.

    Attributes:
        way: one of the program's ways.
        random: whether weights are random.
        device: the torch device.
        vocab: prompts are random token ids below this.
        rows: number of rows of the job.
        at_once: most sequences at once.
        prompt, new: tokens of a prompt, and of an output.
    """

    way: str
    random: bool
    device: str
    vocab: int
    rows: int
    at_once: int
    prompt: int
    new: int


def write_folder(config: ModelConfig, folder: Path, weights: Path | None) -> None:
    """Write the model as a Qwen model, which other engines read, with links to the files of ``weights`` if given."""
    kind = "Qwen3" if config.qk_norm else "Qwen2"
    plain = {
        name: value for name, value in config.to_hf().items() if name not in _OWN_FIELDS and value not in ([], None)
    }
    named = {**plain, "architectures": [f"{kind}ForCausalLM"], "model_type": kind.lower()}
    (folder / "config.json").write_text(json.dumps(named), encoding="utf-8")
    for file in () if weights is None else weights.glob("*.safetensors*"):
        (folder / file.name).symlink_to(file.resolve())


def measure(python: str, file: str, folder: Path, task: Task, limit: float) -> dict[str, Any]:
    """Run a program and return its answer.

    Raises:
        RuntimeError: there is no answer, or not all tokens; the text has the reason.
    """
    command = [python, str(Path(__file__).parent / file), str(folder), json.dumps(asdict(task))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"it took more than {limit:.0f} s") from error
    except OSError as error:
        raise RuntimeError(f"{python} does not start: {error}") from error
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    if done.returncode or not answers:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(said[-1].strip() if said else f"it ended with code {done.returncode} and said nothing")
    found: dict[str, Any] = json.loads(answers[-1])
    if found["tokens"] != task.rows * task.new:
        raise RuntimeError(f"it generated {found['tokens']} of {task.rows * task.new} tokens")
    return found
