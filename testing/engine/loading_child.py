"""``python -m testing.engine.loading_child``: load a model folder and print the memory it needed, as JSON."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path

import torch

from wedlm_core.model.weights import load_model


def anonymous_bytes() -> int:
    """Anonymous memory of this process. Pages of mapped files do not count: they are the system's cache."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found.group(1)) << 10


def main() -> None:
    """Load twice: a small model first, to import everything; then measure the second."""
    small, large, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    load_model(small, dtype=torch.float32, workers=workers)
    before = peak = anonymous_bytes()
    stop = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not stop.wait(0.0005):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    model = load_model(large, dtype=torch.float32, workers=workers)
    stop.set()
    watcher.join()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps({"model": size, "grown": max(peak, anonymous_bytes()) - before}))


if __name__ == "__main__":
    main()
