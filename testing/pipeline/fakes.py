"""In-memory stand-ins for tests of the pipeline's own logic: an engine, a storage, executors without Ray.

The product never uses them; the end-to-end tests use the real engine, files and Ray.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO

from pipeline import layout
from pipeline.codec import FinishReason, Generation, Request, RequestError
from pipeline.commit.part_files import PartDamage, PartJob, PartRecord, write_part
from pipeline.plan.job import Job
from pipeline.plan.units import Work, read_units
from pipeline.progress.snapshot import ExecutorState, ResourceSeconds
from pipeline.prompts.tokenize import prepare_table
from pipeline.types import CommitRecord
from pipeline.worker.engine_thread import EngineThread
from pipeline.worker.load_engine import load_engine
from pipeline.worker.unit_worker import UnitWorker
from wedlm_core.types import CommitStats

BANNED_TOKEN = 5
"""A prompt with this token id is refused by the fake engine."""


class FakeEngine:
    """Keeps the contract of add, step and has_work; tokens are a function of seed and prompt alone.

    ``bans`` refuses prompts with :data:`BANNED_TOKEN`.
    ``fail_at_step`` makes that step (counted from 1) raise, as a device error would.
    """

    def __init__(self, slots: int = 4, fail_at_step: int | None = None, bans: bool = True) -> None:
        self.bans = bans
        self.slots = slots
        self.steps = 0
        self.most_at_once = 0
        self._fail_at = fail_at_step
        self._left: dict[str, int] = {}
        self._requests: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        if self.bans and BANNED_TOKEN in request.prompt_token_ids:
            raise RequestError(f"token {BANNED_TOKEN} is banned here")
        assert request.request_id not in self._requests, "request ids are unique among unfinished requests"
        self._requests[request.request_id] = request
        self._left[request.request_id] = 1 + request.seed % 3

    def abort(self, request_id: str) -> None:
        del self._requests[request_id]
        del self._left[request_id]

    def has_work(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[Generation]:
        self.steps += 1
        if self.steps == self._fail_at:
            raise RuntimeError("device lost")
        running = list(self._requests)[: self.slots]
        self.most_at_once = max(self.most_at_once, len(running))
        done = []
        for key in running:
            self._left[key] -= 1
            if self._left[key] == 0:
                done.append(self._finish(self._requests.pop(key)))
        return done

    @staticmethod
    def _finish(request: Request) -> Generation:
        if request.continuation:
            ids = request.continuation
            logprobs = tuple(-((sum(request.prompt_token_ids) + 7 * token) % 89) / 89 for token in ids)
            return Generation(request_id=request.request_id, token_ids=ids, logprobs=logprobs,
                              prompt_tokens=len(request.prompt_token_ids), finish_reason=FinishReason.STOP)  # fmt: skip
        count = min(request.params.max_tokens, 1 + request.seed % 4)
        ids = tuple((request.seed + sum(request.prompt_token_ids) + i) % 97 for i in range(count))
        return Generation(
            request_id=request.request_id,
            sample_index=request.sample_index,
            text="".join(chr(65 + i % 26) for i in ids),
            token_ids=ids,
            prompt_tokens=len(request.prompt_token_ids),
            finish_reason=FinishReason.STOP,
            seed=request.seed,
            stats=CommitStats(
                generated_tokens=count,
                decode_forwards=1,
                rows_forwarded=count,
                mean_entropy=(request.seed % 83) / 83,
                mean_logprob=-(request.seed % 89) / 89,
                worst_logprob=-(request.seed % 97) / 9,
            ),
        )


class InlineExecutor:
    """Does units one after the other in this process, with a fake engine; ``order`` permutes them."""

    def __init__(
        self,
        order: Callable[[list[Any]], list[Any]] = lambda units: units,
        engine: Callable[[], FakeEngine] = FakeEngine,
    ) -> None:
        self._order = order
        self._engine = engine
        self.units_done = 0

    @property
    def starts(self) -> Sequence[Mapping[str, float]]:
        return ()

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        prepared = []
        for task in work.tasks:
            tables = read_units(job.source, task.units)
            prepared += [(u, prepare_table(t, u, job)) for u, t in zip(task.units, tables, strict=True)]
        thread = EngineThread(self._engine())
        worker = UnitWorker(job, thread)
        try:
            for unit, table in self._order(prepared):
                yield [worker.run(unit, table)]
                self.units_done += 1
        finally:
            thread.close()

    def traced(self) -> None:
        return None

    def used(self) -> ResourceSeconds:
        return ResourceSeconds()

    def state(self) -> ExecutorState:
        return ExecutorState()

    def write_parts(self, jobs: Iterable[PartJob]) -> Iterator[PartRecord | PartDamage]:
        return map(write_part, jobs)


class RealExecutor(InlineExecutor):
    """The same with the engine that an actor would load."""

    def run_units(self, job: Job, work: Work) -> Iterator[list[CommitRecord]]:
        engine = load_engine(job, 1)
        self._engine = lambda: engine  # type: ignore[assignment,return-value]
        return super().run_units(job, work)


class MemoryStorage:
    """A dictionary with the storage protocol."""

    url = "memory:"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = bytes(data)

    def put_new(self, key: str, data: bytes) -> bool:
        return self.objects.setdefault(key, data) is data

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        return self._create(key)

    @contextmanager
    def _create(self, key: str) -> Iterator[BinaryIO]:
        buffer = io.BytesIO()
        yield buffer
        self.objects[key] = buffer.getvalue()

    def read(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise FileNotFoundError(key) from None

    def open(self, key: str) -> BinaryIO:
        return io.BytesIO(self.read(key))

    def exists(self, key: str) -> bool:
        return key in self.objects or bool(self.keys(key))

    def keys(self, prefix: str) -> list[str]:
        return sorted(k for k in self.objects if prefix in ("", ".") or k.startswith(f"{prefix}/"))

    def sizes(self, prefix: str) -> dict[str, int]:
        return {key: len(self.objects[key]) for key in self.keys(prefix)}

    def folders(self) -> list[str]:
        return sorted({key.split("/", 1)[0] for key in self.objects if "/" in key})

    def walk(self, prefix: str) -> Iterator[list[str]]:
        yield from ([key] for key in self.keys(prefix))

    def delete(self, key: str) -> None:
        for name in [key, *self.keys(key)]:
            self.objects.pop(name, None)

    def delete_objects(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)

    def sweep(self, before: float) -> None:
        self.delete(layout.SCRATCH)

    def promote(self, source: str, target: str) -> None:
        moved = self.keys(source)
        if not moved and not self.keys(target):
            raise FileNotFoundError(source)
        for key in moved:
            self.objects[target + key[len(source) :]] = self.objects.pop(key)
