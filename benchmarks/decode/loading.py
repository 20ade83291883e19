"""Seconds and memory of loading a model in each dtype, against transformers and llama.cpp.

    python -m benchmarks.decode.loading [--rounds 3] [--model FOLDER] [--peers PYTHON]

Each load is a process of its own, whose libraries are imported before it is timed; all take turns. The files are in
the system's page cache. ``--model`` is a checkpoint of one's own; without it, one of Qwen3-0.6B's shape with random
weights is written. ``--peers`` is a Python with the packages ``llama_cpp`` and ``gguf``, for llama.cpp.

"Floor" is what nobody can do without: reading the files once with plain reads, and rounding and packing every matrix
once, as an engine on this machine does, by as many threads as there are cores. Memory is anonymous memory: mapped files
are the system's cache and do not count, which favours engines that compute on mapped weights.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import table, write_result
from benchmarks.decode.loading_child import OURS

__all__ = ["main"]

_CHILD = Path(__file__).with_name("loading_child.py")
_LLAMA = {"llama.cpp F32": "F32", "llama.cpp Q8_0": "Q8_0"}
_THEIRS = {"transformers float32": "float32", "transformers bfloat16": "bfloat16"}


def main() -> None:
    """Measure all and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a checkpoint folder")
    parser.add_argument("--work", type=Path, help="an existing folder for converted files, which are kept there")
    parser.add_argument("--peers", type=Path, help="a Python with llama_cpp and gguf")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = args.model or _random_model(Path(place) / "0.6b")
        rows = _measured(folder, args.work or Path(place), args.peers, args.rounds)
        files, shape = sum(path.stat().st_size for path in folder.glob("*.safetensors")), _shape(folder)
    header = ("engine and numbers", "seconds to load", "range", "floor, s", "load / floor", "stays, MB", "peak, MB",
              "peak / stays")  # fmt: skip
    body = f"{files / 1e9:.2f} GB of safetensors, {shape}. Medians of {args.rounds} processes each, taking "
    body += "turns, after memory was touched and given back (a virtual machine takes fresh memory slowly); "
    body += f"load of the machine over 15 minutes: {os.getloadavg()[2]:.1f}, where 2 cores are 2.\n\n"
    body += table(header, rows)
    body += "\n\nA load ends when the engine could take its first request: ours with weights packed or rounded, 8 "
    body += "sequences of 512 tokens at most; the pool takes memory when it is used. What stays of transformers and "
    body += "llama.cpp is what they copy: llama.cpp computes on mapped files where it can."
    if args.peers is None:
        body += " llama.cpp was not measured: no `--peers`."
    write_result("loading", "Loading", f"python -m benchmarks.decode.loading --rounds {args.rounds}", body)


def _random_model(folder: Path) -> Path:
    import torch

    from benchmarks.decode.shapes import QWEN3_06B, write_checkpoint

    return write_checkpoint(QWEN3_06B, folder, torch.bfloat16)


def _shape(folder: Path) -> str:
    raw = json.loads((folder / "config.json").read_text())
    return f"{raw['num_hidden_layers']} layers of width {raw['hidden_size']}, {raw['vocab_size']} ids, {raw['dtype']}"


def _measured(folder: Path, place: Path, peers: Path | None, rounds: int) -> list[tuple[object, ...]]:
    runs: dict[str, Callable[[], Mapping[str, Any]]] = {}
    for name in OURS:
        runs[f"ours {name}"] = lambda name=name: _child(sys.executable, "ours", name, str(folder))  # type: ignore[misc]
        runs[f"floor {name}"] = lambda name=name: _child(sys.executable, "floor", name, str(folder))  # type: ignore[misc]
    for name, dtype in _THEIRS.items():
        runs[name] = lambda dtype=dtype: _child(sys.executable, "transformers", dtype, str(folder))  # type: ignore[misc]
    if peers is not None:
        for name, kind in _LLAMA.items():
            file = place / f"{kind}.gguf"
            if not file.is_file():
                _child(str(peers), "convert", kind, str(folder), str(file))
            runs[name] = lambda file=file: _child(str(peers), "llama", "", str(file))  # type: ignore[misc]
    found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
            print(name, found[name][-1], flush=True)
    rows: list[tuple[object, ...]] = []
    for name, each in found.items():
        if name.startswith("floor"):
            continue
        seconds = [one["seconds"] for one in each]
        middle = statistics.median(seconds)
        stays, peak = (statistics.median(one[key] for one in each) for key in ("stays", "peak"))
        floors = [one["seconds"] for one in found.get(name.replace("ours", "floor"), [])] if "ours" in name else []
        floor = statistics.median(floors) if floors else None
        rows.append((
            name, f"{middle:.1f}", f"{min(seconds):.1f}-{max(seconds):.1f}", "" if floor is None else f"{floor:.1f}",
            "" if floor is None else f"{middle / floor:.2f}", f"{stays:.0f}", f"{peak:.0f}",
            f"{peak / max(stays, 1):.2f}",
        ))  # fmt: skip
    return rows


def _child(python: str, *words: str) -> Mapping[str, Any]:
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run([python, str(_CHILD), *words], env=env, check=True, stdout=subprocess.PIPE, text=True)
    answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    return answer


if __name__ == "__main__":
    main()
