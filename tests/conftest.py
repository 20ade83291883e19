"""Models, the S3 server and the Ray session that every test may use."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.stages import LOGGER
from testing.engine import kernels
from testing.pipeline.s3 import S3Server, serve_s3
from testing.sweeps import mark_rest_as_slow
from wedlm_core import redaction
from wedlm_core.kernels.cpu.kept import kernel_folder

# Modules are compiled, and assertions rewritten, once: not by each of the processes that tests start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Collecting makes half a million objects that all stay: looking through them for garbage, again and again as they grow,
# took as long as the collecting. The hook below turns it on again.
gc.disable()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of sweeps the default run takes a part."""
    mark_rest_as_slow(items)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of several processes none compiles the kernels that another one does, where they are not kept yet.

    The process that distributes the tests imports no torch: the others begin after it.
    """
    if getattr(session.config.option, "numprocesses", None):
        kernels.compile_aside()
        return
    import torch
    from hypothesis import settings

    from testing.engine import triton_interpreter

    torch.set_num_threads(1)
    triton_interpreter.set_up()
    # An example may be the first that needs a kernel, which is compiled then.
    settings.register_profile("compiling", deadline=None, max_examples=50, database=None)
    settings.load_profile("compiling")


def pytest_collection_finish() -> None:
    """From here on garbage is looked for as usual, but not among objects made by collecting, until the process ends."""
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Step costs that tests measure stay out of the user's cache. Compiled kernels are shared with it."""
    if hasattr(request.config, "workerinput"):
        kernels.compile_once()
    cache, kept = tmp_path_factory.mktemp("cache"), kernel_folder()
    (cache / kept.name).symlink_to(kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEDLM_CACHE_HOME", str(cache))
        yield


@pytest.fixture(scope="session", autouse=True)
def _short_measurements() -> Iterator[None]:
    """The cost of forwards decides which windows pay, and no output: a few of each kind are enough here."""
    from wedlm_core.engine.drafting import measure
    from wedlm_core.engine.drafting.constants import CONSTANTS

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "CONSTANTS", replace(CONSTANTS, measured_seconds=(0.2, 0.2)))
        patch.setattr(measure, "_ROUNDS", 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_flushing() -> Iterator[None]:
    """Flushing to the disk takes milliseconds, thousands of times, and guards against loss of power, which no test has.

    Another test watches the calls and their order.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def _silent_stages() -> Iterator[None]:
    """A command line that runs in this process shows stages from then on: not to the next test."""
    yield
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.handlers.clear()
    LOGGER.propagate = True


@pytest.fixture(autouse=True)
def _forgotten_secrets() -> Iterator[None]:
    """A test's credential, such as "test", is not masked in the paths and words of the next test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_kept", dict(redaction._kept))
        yield


@pytest.fixture(scope="session")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a random model to a folder of a name."""
    from testing.engine.models import write_model

    return lambda name, **options: write_model(tmp_path_factory.mktemp("models") / name, **options)


@pytest.fixture(scope="session")
def qwen3_folder(_written: Callable[..., Path]) -> Path:
    """A random Qwen3-style model."""
    return _written("qwen3", qwen3=True, seed=1)


@pytest.fixture(scope="session")
def qwen25_folder(_written: Callable[..., Path]) -> Path:
    """A random Qwen2.5-style model, tied embeddings."""
    return _written("qwen25", qwen3=False, seed=2)


@pytest.fixture(scope="session")
def agreeing_folder(_written: Callable[..., Path]) -> Path:
    """A random Qwen3-style model whose masks often propose the choice of its next-token head."""
    return _written("agreeing", qwen3=True, seed=3, sharpness=2.0, common=0.5)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real server of the S3 protocol; tests take a bucket each."""
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with serve_s3() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def _one_ray_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray keeps the first token that a process used: all sessions of this process use one."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(secrets.token_hex(32))
    before = os.environ.get("RAY_AUTH_TOKEN_PATH")
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    yield
    if before is None:
        del os.environ["RAY_AUTH_TOKEN_PATH"]
    else:
        os.environ["RAY_AUTH_TOKEN_PATH"] = before


@pytest.fixture(scope="session")
def _ray_sessions() -> Iterator[list[str]]:
    """Addresses of the sessions that :func:`cluster` began; the last one ends with the tests of this process."""
    begun: list[str] = []
    yield begun
    if begun:
        import ray

        ray.shutdown()


@pytest.fixture(scope="module")
def cluster(_ray_sessions: list[str]) -> None:
    """A Ray session of the caller's, as a notebook would have one: the same for all files of this process."""
    import ray

    from pipeline.cluster.private_ray import LOOPBACK, on_loopback
    from pipeline.cluster.session import PRIVATE_SYSTEM_CONFIG

    if ray.is_initialized():
        if ray.get_runtime_context().gcs_address in _ray_sessions:
            return
        ray.shutdown()  # a private one that reading an output started
    with on_loopback():
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address=LOOPBACK,
            object_store_memory=200 * 2**20, _system_config=PRIVATE_SYSTEM_CONFIG,
        )  # fmt: skip
    _ray_sessions.append(ray.get_runtime_context().gcs_address)


@pytest.hookimpl(trylast=True)  # after fixtures are torn down
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A parallel run has the tests of :func:`cluster` together: after them the idle session would take its share."""
    if hasattr(item.config, "workerinput") and nextitem is not None and "ray" in sys.modules:
        from testing.scheduling import uses_session

        own, following = (uses_session(one.nodeid.partition("::")[0]) for one in (item, nextitem))
        if own and not following:
            sys.modules["ray"].shutdown()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadfile`` with one process for all files that use :func:`cluster`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from testing.scheduling import FilesAndOneSession

    return FilesAndOneSession(config, log)
