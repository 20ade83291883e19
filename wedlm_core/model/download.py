"""Downloads a model's files into a folder of the cache, once per machine.

A folder appears complete or not at all, even if several processes want it at once or one is killed. The downloaded
files are recorded with checksums; a folder that no longer agrees with them is downloaded again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt")
"""Patterns of the files that are downloaded: no pickles, no code."""
_RECORD = "CHECKSUMS"
"""The file of the checksums; its name is none of a model's files."""
_CHUNK = 16 * 2**20


def model_files(fs: Any, root: str) -> dict[str, str]:
    """``{file name: remote path}`` of the model files directly under ``root``."""
    fs.invalidate_cache()
    paths = fs.find(root, maxdepth=1)
    names = {path.rsplit("/", 1)[-1]: path for path in paths}
    return {name: path for name, path in sorted(names.items()) if any(fnmatch(name, p) for p in MODEL_FILES)}


def content_key(fs: Any, url: str, files: Mapping[str, str]) -> str:
    """Hash of the URL, the file names and the store's checksums (ETag, else time and size)."""
    digest = hashlib.blake2b(url.encode(), digest_size=16)
    for name, path in files.items():
        digest.update(f"\x1f{name}\x1f{fs.checksum(path)}".encode())
    return digest.hexdigest()


def is_whole(folder: Path) -> bool:
    """Whether a folder of the cache is there and holds the downloaded files; without a record it is taken as it is.

    Files whose size, times and inode are as recorded are not read again.
    """
    if not folder.is_dir():
        return False
    try:
        recorded = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:  # filled by hand, or by an earlier version
        return True
    except (OSError, ValueError):
        return False
    try:
        return all(_agrees(folder / name, *facts) for name, facts in recorded.items())
    except (OSError, TypeError, AttributeError):
        return False


def _agrees(path: Path, checksum: str, stamp: list[int]) -> bool:
    return stamp == _stamp(path) or (stamp[0] == path.stat().st_size and checksum == _checksum(path))


def fetch_once(fs: Any, files: Mapping[str, str], target: Path) -> Path:
    """Download ``files`` into the folder ``target``, unless another process of this machine does or has; returns it.

    Args:
        fs: their fsspec file system.
        files: file name -> remote path.
        target: replaced if it differs from the downloaded files.
    """
    from filelock import FileLock

    # The lock dies with its process.
    with FileLock(f"{target}.lock"):
        if not is_whole(target):
            if target.is_dir():
                _LOG.warning("%s: its files differ from the downloaded ones; they are downloaded again", target)
                shutil.rmtree(target)
            _fetch(fs, files, target)
    return target


def _fetch(fs: Any, files: Mapping[str, str], target: Path) -> None:
    """Download next to ``target``, then rename. A kill leaves a temporary folder, never half a model."""
    for old in target.parent.glob(f".{target.name}.*"):  # of processes that were killed; the lock is ours
        shutil.rmtree(old, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        record = {}
        for name, path in files.items():
            fs.get_file(path, str(staging / name))
            record[name] = [_checksum(staging / name), _stamp(staging / name)]
        (staging / _RECORD).write_text(json.dumps(record), encoding="utf-8")
        for file in staging.iterdir():
            _sync(file)
        os.replace(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync(path: Path) -> None:
    """Write a file's content to the disk, so that a crash of the machine does not leave an empty one."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _stamp(path: Path) -> list[int]:
    """Values that change when a file is written to: size, time of the change, inode."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _checksum(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
