"""Compile every kernel for one architecture and print the resources of each.

    python -m testing.ahead_of_time 80|90 [--brief] [--json]

``TRITON_INTERPRET`` must not be set. Exit code 1 if a kernel exceeds a limit of the device.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
"""Most shared memory of a thread block in bytes, by compute capability."""


def faults(capability: int, kernel: dict[str, object]) -> list[str]:
    """The limits that a kernel exceeds; ``kernel`` has the fields of :class:`testing.ahead_of_time.Kernel`."""
    wrong = []
    if int(str(kernel["shared"])) > SHARED_BYTES[capability]:
        wrong.append(f"takes {kernel['shared']} bytes of shared memory of {SHARED_BYTES[capability]}")
    if kernel["stack"]:
        wrong.append(f"spills {kernel['stack']} bytes")
    if kernel.get("early"):
        wrong.append(f"reads or writes memory {kernel['early']} times before it waits for the kernel before it")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capability", type=int, choices=sorted(SHARED_BYTES))
    parser.add_argument("--brief", action="store_true", help="each kernel in one or two variants")
    parser.add_argument("--json", action="store_true", help="a list of objects")
    options = parser.parse_args(arguments)

    from testing.ahead_of_time.driver import install
    from testing.ahead_of_time.variants import variants

    install(options.capability)

    from testing.engine.published_models import WEDLM_8B
    from wedlm_core.model.sources import resolve
    from wedlm_core.model.weights import load_config

    shapes = {"8B": WEDLM_8B, "tiny": load_config(Path(resolve("tiny")))}
    eight_bits, overlap = options.capability >= 89, options.capability >= 90
    with patch("wedlm_core.kernels.gpu.dependent_launch.takes_dependents", return_value=overlap):  # else by a trial
        found = [asdict(v) for v in variants(shapes, eight_bits=eight_bits, brief=options.brief)]
    if options.json:
        print(json.dumps(found))
        return 0
    broken = 0
    for each in found:
        wrong = faults(options.capability, each["kernel"])
        broken += bool(wrong)
        print(each["launch"], {k: v for k, v in each["kernel"].items() if k != "name"}, *wrong)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
