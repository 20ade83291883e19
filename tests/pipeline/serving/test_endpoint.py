"""The server as its users have it: the official client, the shipped model, and processes that are killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import layout
from pipeline.commands.run import run_on
from pipeline.config import RunConfig
from pipeline.serving.store import Store
from pipeline.storage.open import open_storage
from testing.pipeline.endpoint import Server
from testing.pipeline.fakes import RealExecutor
from testing.pipeline.openai_batch import CHAT, chat_line, parsed_results, write_batch
from testing.pipeline.s3 import S3Server

SLOWLY = ("--set=unit_rows=2", "--set=engine.max_num_seqs=1", "--strategy=autoregressive", "--max-tokens=24")
"""Options of a server whose runs take a while, and commit often."""


def lines(count: int) -> list[dict[str, Any]]:
    """Requests; one of them is refused."""
    return [chat_line(f"q{i}", f"Add {i} and {i * 7 % 50}.", **({"nonsense": 1} if i == 3 else {}))
            for i in range(count)]  # fmt: skip


def submit(server: Server, requests: list[dict[str, Any]], **metadata: str) -> Any:
    data = "".join(json.dumps(line) + "\n" for line in requests).encode()
    file = server.client.files.create(file=("batch.jsonl", data), purpose="batch")
    return server.client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
        metadata=metadata,
    )  # fmt: skip


def results(server: Server, batch: Any, folder: Path) -> tuple[list[str], list[str]]:
    """The custom ids and contents of the answers in the order of the file, and those of the errors."""
    found = []
    for kind in ("output", "error"):
        name = getattr(batch, f"{kind}_file_id")
        text = "" if name is None else server.client.files.content(name).text
        (folder / kind).write_text(text)
        parsed = parsed_results(folder / kind, {line["custom_id"]: CHAT for line in map(json.loads, text.splitlines())})
        found.append([f"{key}: {own.choices[0].message.content if kind == 'output' else own}"
                      for key, own in parsed.items()])  # fmt: skip
    return found[0], found[1]


def undisturbed(requests: list[dict[str, Any]], folder: Path) -> list[str]:
    """The answers of a run in this process."""
    config = RunConfig(
        input=str(write_batch(folder / "all.jsonl", requests)), output=str(folder / "out"), model="tiny",
        sampling=pipeline.SamplingParams(max_tokens=24, strategy="autoregressive"),  # type: ignore[arg-type]
    )  # fmt: skip
    run_on(RealExecutor(), config, open_storage(config.output, layout.SCRATCH), lambda progress: None)
    pipeline.export(config.output, folder / "r.jsonl")
    made = map(json.loads, (folder / "r.jsonl").read_text().splitlines())
    return [f"{line['custom_id']}: {line['response']['body']['choices'][0]['message']['content']}" for line in made]


@contextmanager
def started(*servers: Server) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.kill()


def test_a_batch_survives_a_kill_of_the_server_and_its_run(tmp_path: Path, cluster: None) -> None:
    import ray

    # Its runs join the session of the tests: a Ray of their own takes most of the time of a small batch.
    joins = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "RAY_AUTH_MODE": "token",
             "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # fmt: skip
    store, requests = str(tmp_path / "store"), lines(20)
    first = Server(store, tmp_path / "log", *SLOWLY, environment=joins)
    with started(first):
        batch = submit(first, requests)
        assert first.wait_for_answers(batch.id).status == "in_progress"
        first.kill()
    second = Server(store, tmp_path / "log", *SLOWLY, environment=joins)
    with started(second):
        done = second.wait(batch.id)
        counts = done.request_counts
        assert (done.status, counts.total, counts.completed, counts.failed) == ("completed", 20, 19, 1)
        answers, errors = results(second, done, tmp_path)
        assert second.stop() == 143
    assert answers == undisturbed(requests, tmp_path)
    assert [line.split(":")[0] for line in errors] == ["q3"]
    runs = pipeline.status(f"{store}/runs/{batch.id}")
    assert runs["rows_published"] == 20
    assert "runs 20 requests" in (tmp_path / "log").read_text()


@pytest.mark.slow(reason="two servers, four runs and kills: about a minute")
@pytest.mark.parametrize("place", ["folder", "s3"])
def test_two_servers_share_a_store(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store, options, more = str(tmp_path / "store"), {}, ()
    if place == "s3":
        server: S3Server = request.getfixturevalue("s3")
        store, options = f"{server.bucket('shared')}/store", server.references(tmp_path)
        more = ("--storage-options", json.dumps(options))
    requests, chance = lines(30), random.Random(3)
    servers = [Server(store, tmp_path / f"log{i}", *SLOWLY, *more) for i in range(2)]
    with started(*servers):
        batches = [submit(servers[i % 2], requests, priority=str(i)) for i in range(4)]
        for _ in range(3):
            time.sleep(chance.uniform(2, 8))
            at = chance.randrange(2)
            servers[at].kill()
            servers[at] = Server(store, tmp_path / f"log{at}", *SLOWLY, *more)
        wanted = undisturbed(requests, tmp_path)
        for i, batch in enumerate(batches):
            done = servers[i % 2].wait(batch.id)
            assert done.status == "completed"
            assert results(servers[1 - i % 2], done, tmp_path)[0] == wanted
        for server in servers:
            server.stop()
    assert Store(store, options).storage.keys("queue") == []


@pytest.mark.slow(reason="a server and two runs that are stopped: about 30 s")
def test_a_run_is_cancelled_or_expires_with_the_answers_so_far(tmp_path: Path) -> None:
    requests = lines(400)
    server = Server(str(tmp_path / "store"), tmp_path / "log", *SLOWLY)
    with started(server):
        cancelled = submit(server, requests)
        queued = submit(server, requests[:5])
        server.wait_for_answers(cancelled.id)
        server.client.batches.cancel(queued.id)
        assert server.wait(queued.id).status == "cancelled", "without waiting for the other one"
        server.client.batches.cancel(cancelled.id)
        expiring = submit(server, requests)
        server.wait_for_answers(expiring.id)
        now = int(time.time())
        Store(str(tmp_path / "store"), {}).change(expiring.id, lambda own: replace(own, expires_at=now))
        wanted = undisturbed(requests[:10], tmp_path)
        for batch, status in ((cancelled, "cancelled"), (expiring, "expired")):
            done = server.wait(batch.id)
            answers, errors = results(server, done, tmp_path)
            assert (done.status, len(answers) + len(errors)) == (status, 400)
            assert {own for own in answers if own.split(":")[0] in {f"q{i}" for i in range(10)}} <= set(wanted)
            assert f"batch_{status}" in errors[-1]
            assert 0 < done.request_counts.completed < 399
        assert server.stop() == 143
