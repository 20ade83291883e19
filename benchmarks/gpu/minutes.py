"""Measures on one GPU, in less than 10 minutes, all that has no figures from a GPU yet.

    python -m benchmarks.gpu.minutes [--sections ceilings attention ...] [--minutes 9.8] [--output FOLDER]
        [--shape 8b] [--weight-dtype int8] [--rows 1 8 64 ...] [--batches 1 8 ...] [--contexts 1024 ...]
    python -m benchmarks.gpu.minutes --device cpu --tiny        # runs the code, measures nothing of interest

Each group of sections runs in its own process, so that a device fault in one does not end the others. When a section
ends, its figures or its error are written to a file in the folder ``gpu_minutes_<date>``. If the shape or the dtype of
the weights is not the default, it follows the date. At the end all files are joined to a page and a JSON file with the
name of the folder. Exit code: 0; 1 if a section failed; 2 without a CUDA device.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.common import machine, positive
from wedlm_core.cache import writable_cache
from wedlm_core.kernels.cpu.kept import kernel_folder

_GRACE = 8.0  # seconds that a process may run over its time before it is ended
_NO_DEVICE = 2
# The first one of each is the default.
_SHAPES = ("8b", "1.7b", "0.6b")
_WEIGHT_DTYPES = ("int8", "auto", "int4", "fp8_e4m3")
# Options that take numbers, and their fields of the scale.
_NARROW_ROWS, _NARROW_BATCHES = (1, 64, 128, 256), (64,)
_COUNTS = {"rows": "row_counts", "batches": "batches", "contexts": "contexts"}


@dataclass(frozen=True, kw_only=True)
class _Section:
    """A section.

    Attributes:
        place: ``module:function`` in this package.
        group: sections of a group share a process.
        seconds: time limit.
        least: seconds that earlier sections of its group must leave for it.
        narrow: whether keys and values have 8 bits.
    """

    place: str
    group: str
    seconds: float
    least: float = 0.0
    narrow: bool = False


SECTIONS: Mapping[str, _Section] = {
    "ceilings": _Section(place="device:ceilings", group="device", seconds=10),
    "tests": _Section(place="checks:tests", group="tests", seconds=90),
    "attention": _Section(place="attention:attention", group="device", seconds=25, least=15),
    "products": _Section(place="products:products", group="device", seconds=40, least=20),
    "costs": _Section(place="steps:costs", group="model", seconds=35),
    "load": _Section(place="load:load", group="model", seconds=135, least=100),
    "kernels": _Section(place="kernels:kernels", group="model", seconds=30, least=10),
    "filters": _Section(place="steps:filters", group="model", seconds=30, least=10),
    "history": _Section(place="history:history", group="history", seconds=80),
    "steps in 8 bits": _Section(place="steps:steps", group="narrow", seconds=45, narrow=True),
    "load in 8 bits": _Section(place="load:load", group="narrow", seconds=45, least=20, narrow=True),
    "steps": _Section(place="steps:steps", group="model", seconds=45),
    "structured": _Section(place="structured:structured", group="structured", seconds=60),
}
"""All sections, the most important ones first."""
OPEN = tuple(SECTIONS)[:11]
"""The default sections: all that fit into the time limit together."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; return the exit code."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.tiny and args.shape != _SHAPES[0]:
        parser.error(f"--shape {args.shape}: toy sizes have a shape of their own. Drop --tiny, or --shape.")
    if args.child is not None:
        return _run_group(args)
    if args.device.startswith("cuda") and not _has_cuda():
        print(
            "no CUDA device here, and this measures a GPU. Run it on a machine with one, or exercise the code with "
            "--device cpu --tiny.",
            file=sys.stderr,
        )
        return _NO_DEVICE
    begin, folder = time.monotonic(), Path(args.output) / _stem(args)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        found = _in_processes(args, folder, Path(cache), begin)
    failed = [name for name, one in found.items() if "error" in one]
    _write(args, found, time.monotonic() - begin)
    return 1 if failed else 0


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _in_processes(args: argparse.Namespace, folder: Path, cache: Path, begin: float) -> dict[str, dict[str, Any]]:
    """Run the groups one after the other; return the result or the error of each section."""
    for kept in (kernel_folder(), writable_cache("benchmarks")):  # compiled kernels and tokenizers are no measurements
        (cache / kept.name).symlink_to(kept)
    end = begin + 60 * args.minutes - _GRACE
    # The ceilings are always measured, as other sections are compared with them.
    wanted = [name for name in SECTIONS if name in (*args.sections, "ceilings")]
    for name in wanted:
        _file(folder, name).unlink(missing_ok=True)
    groups = [wanted] if args.tiny else [
        [name for name in wanted if SECTIONS[name].group == group]
        for group in dict.fromkeys(SECTIONS[name].group for name in wanted)
    ]  # fmt: skip
    for names in groups:
        seconds = min(sum(SECTIONS[name].seconds for name in names) + 30, end - time.monotonic())
        command = [sys.executable, "-m", "benchmarks.gpu.minutes", "--child", *names, "--into", str(folder.resolve())]
        command += ["--device", args.device, "--seconds", f"{seconds:.1f}", *_options(args)]
        environment = {
            **os.environ,
            "WEDLM_CACHE_HOME": str(cache),
        }  # measure step costs now instead of reading an older cache
        note = "its process was not started: the time was over"
        if seconds > 0:
            note = _ran(command, environment, seconds + _GRACE)
        for name in names:
            if not _file(folder, name).exists():
                _keep(folder, name, {"title": name, "error": note})
    return {name: json.loads(_file(folder, name).read_text(encoding="utf-8")) for name in wanted}


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(' ', '_')}.json"


def _keep(folder: Path, name: str, found: Mapping[str, Any]) -> None:
    """Write the file of a section atomically."""
    aside = _file(folder, name).with_suffix(".new")
    aside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    aside.replace(_file(folder, name))


def _options(args: argparse.Namespace) -> list[str]:
    """The options of the measurement that are not the defaults."""
    return [
        *(["--tiny"] if args.tiny else []),
        *(["--shape", args.shape] if args.shape != _SHAPES[0] else []),
        *(["--weight-dtype", args.weight_dtype] if args.weight_dtype != _WEIGHT_DTYPES[0] else []),
        *(part for name in _COUNTS for part in _option(name, getattr(args, name))),
    ]


def _option(name: str, numbers: Sequence[int] | None) -> list[str]:
    return [f"--{name}", *map(str, numbers)] if numbers else []


def _ran(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
    """Run a group's process, and end it when its time is over; return the error of sections that it did not finish."""
    root = Path(__file__).resolve().parents[2]
    try:
        code = subprocess.run(command, env=dict(environment), cwd=root, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"its process was ended after {seconds:.0f} s"
    return f"its process ended with code {code} before"


def _run_group(args: argparse.Namespace) -> int:
    """Run the sections of one group in this process; write the file of each as soon as it is measured."""
    import logging

    import torch

    logging.basicConfig(level=logging.INFO, format="   %(message)s")  # backends chosen, graphs captured, costs measured
    from benchmarks.gpu.section import Clock, Scene, scale_of

    end = time.monotonic() + args.seconds
    device = torch.device("cuda:0" if args.device == "cuda" else args.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    folder = Path(args.into)
    scale = scale_of(args.shape, args.weight_dtype, tiny=args.tiny)
    given: dict[str, Any] = {at: tuple(getattr(args, name)) for name, at in _COUNTS.items() if getattr(args, name)}
    scale = replace(scale, **given)
    narrow: Any = "fp8_e4m3" if device.type == "cuda" else "int8"
    wide = Scene(device=device, scale=scale, clock=Clock(0), weight_dtype=args.weight_dtype)
    few = replace(scale, row_counts=_NARROW_ROWS, batches=_NARROW_BATCHES, contexts=scale.contexts[:1])
    scenes = {False: wide, True: replace(wide, kv_dtype=narrow, scale=scale if args.tiny or given else few, kept={})}
    for number, name in enumerate(args.child):
        section = SECTIONS[name]
        scene = scenes[section.narrow]
        if _file(folder, "ceilings").exists():
            facts = json.loads(_file(folder, "ceilings").read_text(encoding="utf-8")).get("facts", {})
            scene.bandwidth, scene.gemm_rate = facts.get("bandwidth", 0.0), facts.get("gemm_rate", 0.0)
        later = sum(SECTIONS[other].least for other in args.child[number + 1 :])
        scene.clock = Clock(min(section.seconds, end - time.monotonic() - later))
        print(f"== {name}", flush=True)
        begin = time.monotonic()
        _keep(folder, name, {**_section(section, scene, name), "seconds": time.monotonic() - begin})
        print(f"-- {name}: {time.monotonic() - begin:.0f} s", flush=True)
    return 0


def _section(section: _Section, scene: Any, name: str) -> dict[str, Any]:
    """Run a section. An exception becomes its result, so that the suite goes on."""
    module, _, function = section.place.partition(":")
    try:
        if name != "ceilings" and not scene.bandwidth:
            raise RuntimeError("the ceilings of the device were not measured, and this section is compared with them")
        report = getattr(import_module(f"benchmarks.gpu.{module}"), function)(scene)
    except Exception as error:
        trace = traceback.format_exc()
        print(trace, flush=True)
        return {"title": name, "error": f"{type(error).__name__}: {error}", "trace": trace}
    return {**report.plain(), "markdown": report.markdown()}


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _stem(args: argparse.Namespace) -> str:
    """The name of a run's folder and files."""
    changed = [
        given for given, first in ((args.shape, _SHAPES[0]), (args.weight_dtype, _WEIGHT_DTYPES[0])) if given != first
    ]
    return "_".join(["gpu_minutes", *(["toy"] if args.tiny else []), _today(), *changed])


def _write(args: argparse.Namespace, found: Mapping[str, Mapping[str, Any]], seconds: float) -> None:
    """Write the Markdown and the JSON file."""
    folder, stem = Path(args.output), _stem(args)
    note = (
        ""
        if args.device.startswith("cuda")
        else "**Not a GPU, toy sizes: these figures only show that the code runs.**"
    )
    errors = [f"## {one['title']}\n\n**Failed:** {one['error']}\n\n```\n{one.get('trace', '').strip()}\n```"
              for one in found.values() if "error" in one]  # fmt: skip
    times = ", ".join(f"{name} {one.get('seconds', 0.0):.0f} s" for name, one in found.items())
    command = ["python -m benchmarks.gpu.minutes", *(["--device cpu"] if args.tiny else []), *_options(args)]
    parts = [
        "# The GPU path, measured",
        f"- Command: `{' '.join(command)}`\n- Date: {_today()}\n"
        f"- Machine: {machine()}\n- The whole run took {seconds:.0f} s ({times}).",
        *([note] if note else []),
        *errors,
        *(one["markdown"] for one in found.values() if "markdown" in one),
    ]
    body = "\n\n".join(parts) + "\n"
    (folder / f"{stem}.md").write_text(body, encoding="utf-8")
    plain = {name: {k: v for k, v in one.items() if k != "markdown"} for name, one in found.items()}
    head = {"date": _today(), "machine": machine(), "device": args.device, "toy": args.tiny, "seconds": seconds,
            "shape": "toy" if args.tiny else args.shape, "weight_dtype": args.weight_dtype}  # fmt: skip
    (folder / f"{stem}.json").write_text(json.dumps({**head, "sections": plain}, indent=1) + "\n", encoding="utf-8")
    print(f"\n{body}\nwritten: {stem}.md, {stem}.json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", default=list(OPEN), choices=list(SECTIONS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to exercise the code")
    parser.add_argument("--shape", default=_SHAPES[0], choices=_SHAPES, help="of the random model; not with --tiny")
    parser.add_argument("--weight-dtype", default=_WEIGHT_DTYPES[0], choices=_WEIGHT_DTYPES, help="of the random model")
    parser.add_argument("--rows", type=positive, nargs="+", help="numbers of sequences of one row, for step times")
    parser.add_argument("--batches", type=positive, nargs="+", help="sequences in races and with structured output")
    parser.add_argument("--contexts", type=positive, nargs="+", help="context lengths of the races, in tokens")
    parser.add_argument("--minutes", type=float, default=9.8, help="limit of the whole run")
    parser.add_argument("--output", default="out/benchmarks", help="folder of the result")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--into", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
