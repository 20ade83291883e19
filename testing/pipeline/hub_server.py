"""A server of the part of the Hugging Face hub's protocol that uploads and reads dataset repositories.

Written from the requests of the installed ``huggingface_hub``: repositories, branches, preupload, LFS batch and
upload, commits with a parent, trees, files by revision, and the check of a card's YAML. Content is checked as the hub
does it: an LFS object has to have the SHA-256 that names it, and a commit may name only objects that are there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_local_test_token"
_LFS = (".parquet", ".arrow", ".bin")


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file of a commit; ``sha256``: of an LFS object, None for a regular file."""

    data: bytes
    sha256: str | None

    @property
    def blob_id(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()


@dataclass(kw_only=True)
class HubRepo:
    """A dataset repository: its commits by id, and its branches."""

    private: bool
    commits: dict[str, dict[str, HubFile]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.add("main", {".gitattributes": HubFile(data=b"*.parquet filter=lfs\n", sha256=None)}, "initial commit")

    def add(self, branch: str, files: dict[str, HubFile], message: str) -> str:
        """A new commit at the head of a branch; its id."""
        self.messages.append(message)
        oid = hashlib.sha1(f"{len(self.messages)}{branch}".encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        return oid

    def resolve(self, revision: str) -> str | None:
        """The commit that a branch or an id names."""
        return self.branches.get(revision, revision if revision in self.commits else None)

    @property
    def files(self) -> dict[str, HubFile]:
        """Those at the head of main."""
        return self.commits[self.branches["main"]]


@dataclass(kw_only=True)
class HubServer:
    """A running server.

    Attributes:
        endpoint: for ``HF_ENDPOINT``.
        repos: by name.
        objects: LFS objects that were uploaded, by SHA-256.
        requests: method and path of each request, in order.
        before_commit: called with each commit before it is looked at; may change the repository.
    """

    endpoint: str = ""
    repos: dict[str, HubRepo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    before_commit: Any = None

    def uploads(self) -> int:
        """How many objects were sent."""
        return sum(line.startswith("PUT /lfs/upload/") for line in self.requests)


class _RefusedError(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 2**16

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append(f"{self.command} {path}")
        try:
            for method, pattern, act in _ROUTES:
                found = re.fullmatch(pattern, path)
                if method in (self.command, "*") and found:
                    act(self, **found.groupdict())
                    return
            raise _RefusedError(404, f"no route for {self.command} {path}", "EntryNotFound")
        except _RefusedError as error:
            self._json({"error": str(error)}, error.status, {"X-Error-Code": error.code, "X-Error-Message": str(error)})

    def _json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _may_write(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _RefusedError(401, "Invalid username or password.")

    def _repo(self, repo: str) -> HubRepo:
        found = self.hub.repos.get(repo)
        if found is None or (found.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            raise _RefusedError(404, "Repository not found", "RepoNotFound")
        return found

    def _head(self, repo: str, revision: str) -> tuple[str, dict[str, HubFile]]:
        found = self._repo(repo)
        oid = found.resolve(revision)
        if oid is None:
            raise _RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid, found.commits[oid]

    def create(self) -> None:
        self._may_write()
        asked = json.loads(self.body)
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        url = {"url": f"{self.hub.endpoint}/datasets/{name}", "name": name}
        if name in self.hub.repos:
            self._json({**url, "error": "You already created this dataset repo"}, 409)
            return
        self.hub.repos[name] = HubRepo(private=asked.get("visibility") == "private" or bool(asked.get("private")))
        self._json(url)

    def info(self, repo: str, revision: str | None = None) -> None:
        oid, files = self._head(repo, revision or "main")
        siblings = [{"rfilename": path} for path in files]
        private = self._repo(repo).private
        self._json({"_id": "1", "id": repo, "sha": oid, "private": private, "siblings": siblings, "tags": [],
                    "disabled": False, "gated": False, "downloads": 0, "likes": 0})  # fmt: skip

    def branch(self, repo: str, branch: str) -> None:
        self._may_write()
        found = self._repo(repo)
        found.branches.setdefault(branch, found.branches["main"])
        self._json({})

    def tree(self, repo: str, revision: str, path: str | None = None) -> None:
        _, files = self._head(repo, revision)
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() == "true"
        start = f"{path}/" if path else ""
        below = {name: file for name, file in files.items() if name.startswith(start)}
        if path and not below:
            raise _RefusedError(404, f"{path} does not exist", "EntryNotFound")
        folders = {parent.as_posix() for name in below for parent in PurePosixPath(name).parents} - {".", path}
        shown = [name for name in (*folders, *below) if recursive or "/" not in name[len(start) :]]
        self._json([_entry(name, below[name]) if name in below else _folder(name) for name in sorted(shown)])

    def paths_info(self, repo: str, revision: str) -> None:
        _, files = self._head(repo, revision)
        wanted = json.loads(self.body)["paths"]
        found = [_entry(path, files[path]) for path in wanted if path in files]
        folders = [path for path in wanted if any(name.startswith(f"{path}/") for name in files)]
        self._json([*found, *map(_folder, folders)])

    def preupload(self, repo: str, revision: str) -> None:
        self._may_write()
        _, files = self._head(repo, revision)
        answer = []
        for asked in json.loads(self.body)["files"]:
            path, there = asked["path"], files.get(asked["path"])
            mode = "lfs" if path.endswith(_LFS) else "regular"
            oid = {} if there is None else {"oid": there.sha256 or there.blob_id}
            answer.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **oid})
        self._json({"files": answer})

    def lfs_batch(self, repo: str) -> None:
        self._may_write()
        self._repo(repo)
        answer = []
        for asked in json.loads(self.body)["objects"]:
            oid = asked["oid"]
            actions = {name: {"href": f"{self.hub.endpoint}/lfs/{name}/{oid}"} for name in ("upload", "verify")}
            answer.append({**asked, **({} if oid in self.hub.objects else {"actions": actions})})
        self._json({"transfer": "basic", "objects": answer})

    def lfs_upload(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise _RefusedError(400, "the content does not have this SHA-256")
        self.hub.objects[oid] = self.body
        self._send(b"")

    def lfs_verify(self, oid: str) -> None:
        self._may_write()
        if len(self.hub.objects.get(oid, b"")) != json.loads(self.body)["size"]:
            raise _RefusedError(404, "no such object")
        self._json({})

    def commit(self, repo: str, revision: str) -> None:
        self._may_write()
        if self.hub.before_commit is not None:
            self.hub.before_commit(self.hub)
        found = self._repo(repo)
        oid, files = self._head(repo, revision)
        files, header = dict(files), {}
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                header = value
                if value.get("parentCommit") not in (None, oid):
                    raise _RefusedError(412, "A commit has happened since. Please refresh and try again.")
            elif line["key"] == "file":
                files[value["path"]] = HubFile(data=base64.b64decode(value["content"]), sha256=None)
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise _RefusedError(400, f"LFS object {value['oid']} was not uploaded")
                files[value["path"]] = HubFile(data=self.hub.objects[value["oid"]], sha256=value["oid"])
            elif line["key"] == "deletedFile":
                if files.pop(value["path"], None) is None:
                    raise _RefusedError(404, "A file with this name doesn't exist", "EntryNotFound")
            else:
                raise _RefusedError(400, f"no such operation: {line['key']}")
        new = found.add(revision, files, header["summary"])
        self._json(
            {"success": True, "commitOid": new, "commitUrl": f"{self.hub.endpoint}/datasets/{repo}/commit/{new}"}
        )

    def resolve(self, repo: str, revision: str, path: str) -> None:
        oid, files = self._head(repo, revision)
        if path not in files:
            raise _RefusedError(404, "Entry not found", "EntryNotFound")
        file = files[path]
        data, status, headers = file.data, 200, {"X-Repo-Commit": oid, "ETag": f'"{file.sha256 or file.blob_id}"'}
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(asked[1]), int(asked[2] or len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
            data, status = data[first : last + 1], 206
        self._send(data, status, headers)

    def validate_yaml(self) -> None:
        _, front, *_ = json.loads(self.body)["content"].split("---\n", 2)
        try:
            fine = isinstance(yaml.safe_load(front), dict)
        except yaml.YAMLError:
            fine = False
        if fine:
            self._json({"errors": [], "warnings": []})
        else:
            self._json({"errors": [{"message": "not YAML"}], "warnings": []}, 400)


def _entry(path: str, file: HubFile) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "oid": file.blob_id, "size": len(file.data)}
    if file.sha256 is None:
        return entry
    return {**entry, "lfs": {"oid": file.sha256, "size": len(file.data), "pointerSize": 130}}


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}


_OF = r"/api/datasets/(?P<repo>[^/]+/[^/]+)"
_ROUTES = (
    ("POST", r"/api/repos/create", _Handler.create),
    ("POST", r"/api/validate-yaml", _Handler.validate_yaml),
    ("GET", _OF, _Handler.info),
    ("GET", _OF + r"/revision/(?P<revision>.+)", _Handler.info),
    ("POST", _OF + r"/branch/(?P<branch>.+)", _Handler.branch),
    ("GET", _OF + r"/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", _Handler.tree),
    ("POST", _OF + r"/paths-info/(?P<revision>[^/]+)", _Handler.paths_info),
    ("POST", _OF + r"/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    ("POST", _OF + r"/commit/(?P<revision>[^/]+)", _Handler.commit),
    ("POST", r"/datasets/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    ("PUT", r"/lfs/upload/(?P<oid>\w+)", _Handler.lfs_upload),
    ("POST", r"/lfs/verify/(?P<oid>\w+)", _Handler.lfs_verify),
    ("GET", r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
    ("HEAD", r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
)  # fmt: skip


@contextmanager
def serve_hub() -> Iterator[HubServer]:
    """Start a server on loopback; it ends with the block and forgets everything."""
    hub = HubServer()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
