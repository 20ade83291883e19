"""Publications on a hub: one commit has all of it, a second push nothing, and the result loads."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.commands.filter import filter as filter_output
from pipeline.commands.push import push
from pipeline.errors import ConfigError, DamagedError, OutputError, SinkError
from pipeline.sinks.dataset_card import mark_of
from testing.pipeline.exactly_once import SmallJob
from testing.pipeline.hub_server import TOKEN, HubFile, HubServer, serve_hub
from testing.pipeline.s3 import S3Server

REPO = "me/rows"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A hub of one's own, whose token is in the environment. Over HTTP: it does not speak the protocol of Xet."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with serve_hub() as server:
        yield server


def pushed(job: SmallJob, hub: HubServer, **options: Any) -> Any:
    return push(job.config.output, REPO, endpoint=hub.endpoint, storage_options=job.options, **options)


def parts(job: SmallJob) -> dict[str, bytes]:
    return {key: job.storage.read(key) for key in job.storage.keys(".") if key.startswith("data-")}


def on_hub(hub: HubServer) -> dict[str, bytes]:
    return {path: file.data for path, file in hub.repos[REPO].files.items() if path.startswith("data-")}


def test_one_commit_has_all_published_files_and_a_card(make_job: Any, hub: HubServer) -> None:
    job = make_job()
    job.run()
    done = pushed(job, hub, license="apache-2.0")
    assert on_hub(hub) == parts(job)
    assert len(parts(job)) > 1
    assert set(hub.repos[REPO].files) == {*parts(job), "README.md", ".gitattributes"}, "no state, no dead letters"
    assert hub.repos[REPO].messages == ["initial commit", f"Publish {len(parts(job))} files, up to data-000000"]
    assert sorted(done.uploaded) == sorted([*parts(job), "README.md"])
    assert (done.unchanged, done.commit) == (False, hub.repos[REPO].branches["main"])
    assert not hub.repos[REPO].private


def test_a_second_push_uploads_nothing_and_says_so(make_job: Any, hub: HubServer) -> None:
    job = make_job()
    job.run()
    first = pushed(job, hub)
    sent = len(hub.requests)
    again = pushed(job, hub)
    assert (again.unchanged, again.uploaded, again.commit) == (True, (), first.commit)
    assert {line.split()[0] for line in hub.requests[sent:]} <= {"GET", "HEAD"}, "it only looked"


def test_the_card_says_what_was_generated_and_how_to_load_it(make_job: Any, hub: HubServer) -> None:
    job = make_job()
    job.run(column_prefix="gen_", seed=7)
    pushed(job, hub, license="cc-by-4.0")
    text = hub.repos[REPO].files["README.md"].data.decode()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front == {
        "license": "cc-by-4.0",
        "size_categories": ["n<1K"],
        "tags": ["synthetic", "wedlm-batch"],
        "configs": [{"config_name": "default", "data_files": "data-*/*.parquet"}],
    }
    rows = pq.read_table(job.config.output)
    failed = sum(reason == "error" for reason in rows["gen_finish_reason"].to_pylist())
    assert failed > 0
    tokens = sum(count or 0 for count in rows["gen_completion_tokens"].to_pylist())
    inputs = sum(index == 0 for index in rows["gen_sample_index"].to_pylist())
    for line in (f"| input rows | {inputs} |", f"| of which failed | {failed} |", "| `topic` | `string` |",
                 f"| generations | {rows.num_rows - failed} |", f"| generated tokens | {tokens} |",
                 f"| finish reason `error` | {failed} |", "| seed | `7` |", f'load_dataset("{REPO}", split="train")',
                 f"the model `{Path(job.config.model).name}`"):  # fmt: skip
        assert line in text
    assert job.config.model not in text, "no path of this machine"
    asked = len(hub.requests)
    dry = push(job.config.output, REPO, dry_run=True)
    assert "license" not in yaml.safe_load(dry.card.split("---\n")[1])
    assert sorted(dry.uploaded) == sorted([*parts(job), "README.md"])
    assert len(hub.requests) == asked


@pytest.mark.parametrize(("keep", "rows"), [("sample_index == 1", True), ("completion_tokens > 9999", False)])
def test_an_output_of_a_filter_is_pushed_with_a_card_of_its_own(
    make_job: Any, tmp_path: Path, keep: str, rows: bool
) -> None:
    job = make_job()
    job.run(column_prefix="gen_")
    name = keep.replace("sample", "gen_sample").replace("completion", "gen_completion")
    filter_output(job.config.output, to=tmp_path / "kept", keep=name, storage_options=job.options)
    card = push(tmp_path / "kept", REPO, dry_run=True).card
    kept = pq.read_table(tmp_path / "kept").num_rows
    assert bool(kept) is rows
    assert f"| generations | {kept} |" in card
    assert f"| filter.keep | `{name}` |" in card
    assert "a filter kept these" in card
    assert "exactly once" not in card
    assert "input rows" not in card
    assert (f"by the model `{Path(job.config.model).name}`" in card) is rows
    assert job.config.model not in card, "no path of this machine"


def test_what_a_publication_replaced_goes_and_what_others_put_there_stays(make_job: Any, hub: HubServer) -> None:
    job = make_job()
    job.run()
    pushed(job, hub)
    before = parts(job)
    repo = hub.repos[REPO]
    repo.add("main", {**repo.files, "notes/data-000000.md": HubFile(data=b"mine", sha256=None)}, "somebody's")
    job.retry()
    assert set(parts(job)) != set(before)
    done = pushed(job, hub)
    assert on_hub(hub) == parts(job)
    assert sorted(done.removed) == sorted(set(before) - set(parts(job)))
    assert repo.files["notes/data-000000.md"].data == b"mine"
    assert len(repo.messages) == 4


def test_a_readme_of_somebody_else_is_left_as_it_is(make_job: Any, hub: HubServer) -> None:
    job = make_job()
    job.run()
    pushed(job, hub)
    repo = hub.repos[REPO]
    ours = repo.files["README.md"].data.decode()
    assert mark_of(ours)
    own = "\n".join(line for line in ours.splitlines() if mark_of(line) is None).encode()
    repo.add("main", {**repo.files, "README.md": HubFile(data=own, sha256=None)}, "edited")
    assert pushed(job, hub).unchanged
    job.retry()
    done = pushed(job, hub)
    assert repo.files["README.md"].data == own
    assert done.card is None
    assert "README.md" not in done.uploaded
    repo.add("main", {**repo.files, "README.md": HubFile(data=ours.encode(), sha256=None)}, "back")
    assert pushed(job, hub).uploaded == ("README.md",), "an older one of ours is replaced"


def test_a_commit_of_somebody_else_meanwhile_is_not_lost(make_job: Any, hub: HubServer) -> None:
    job = make_job()
    job.run()
    pushed(job, hub)
    job.retry()

    def interfere(server: HubServer) -> None:
        server.before_commit = None
        repo = server.repos[REPO]
        theirs = {name: HubFile(data=b"x", sha256=None) for name in ("other.txt", "data-000007/part-000000.parquet")}
        repo.add("main", {**repo.files, **theirs}, "meanwhile")

    hub.before_commit = interfere
    assert not pushed(job, hub).unchanged
    assert on_hub(hub) == parts(job)
    assert hub.repos[REPO].files["other.txt"].data == b"x"
    assert hub.uploads() <= 2 * len(parts(job)), "files are not sent again"


def test_a_push_that_dies_before_its_commit_shows_nothing_and_is_continued(make_job: Any, hub: HubServer) -> None:
    job = make_job()
    job.run()

    def fail(server: HubServer) -> None:
        raise ConnectionAbortedError

    hub.before_commit = fail
    with pytest.raises(SinkError, match="The same command continues"):
        pushed(job, hub)
    assert on_hub(hub) == {}
    sent = hub.uploads()
    hub.before_commit = None
    pushed(job, hub)
    assert on_hub(hub) == parts(job)
    assert hub.uploads() == sent


def test_damage_never_gets_a_commit(make_job: Any, hub: HubServer) -> None:
    job = make_job()
    job.run()
    path = Path(job.config.output, next(iter(parts(job))))
    pq.write_table(pq.read_table(path), path, compression="gzip")
    with pytest.raises(DamagedError, match="its checksum differs"):
        pushed(job, hub)
    path.unlink()
    with pytest.raises(DamagedError, match="missing"):
        pushed(job, hub)
    assert on_hub(hub) == {}


def test_an_output_in_a_store_and_a_branch(make_job_that_ran: Any, hub: HubServer, s3: S3Server, tmp_path: Path,
                                           qwen3_folder: Path) -> None:  # fmt: skip
    output = f"{s3.bucket(f'b{uuid.uuid4().hex[:12]}')}/out"
    job = SmallJob(tmp_path / "job", qwen3_folder, output, s3.options, like=make_job_that_ran())
    done = pushed(job, hub, revision="next", private=True)
    repo = hub.repos[REPO]
    there = repo.commits[repo.branches["next"]]
    assert {path: file.data for path, file in there.items() if path.startswith("data-")} == parts(job)
    assert on_hub(hub) == {}
    assert repo.private
    assert pushed(job, hub, revision="next", private=True).commit == done.commit


def test_json_lines_and_arrow_files(make_job: Any, hub: HubServer) -> None:
    for format in ("jsonl", "ipc"):
        job = make_job()
        job.run(output_format=format)
        hub.repos.clear()
        pushed(job, hub)
        assert on_hub(hub) == parts(job)
        assert pushed(job, hub).unchanged
        front = yaml.safe_load(hub.repos[REPO].files["README.md"].data.decode().split("---\n")[1])
        assert ("dataset_info" in front) == (format == "jsonl")


def test_faults_are_named(make_job: Any, hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = make_job()
    with pytest.raises(OutputError, match="no run was begun there"):
        pushed(job, hub)
    job.run()
    with pytest.raises(ConfigError, match=r"repo='a/b/c'.*Write user/name"):
        push(job.config.output, "a/b/c", endpoint=hub.endpoint)
    with pytest.raises(ConfigError, match="license='Apache 2'"):
        pushed(job, hub, license="Apache 2")
    pushed(job, hub)
    with pytest.raises(ConfigError, match="this repository is public"):
        pushed(job, hub, private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_and_secret")
    job.retry()
    with pytest.raises(SinkError, match=r"(?s)Set HF_TOKEN") as refused:
        pushed(job, hub)
    assert "hf_wrong_and_secret" not in str(refused.value)
