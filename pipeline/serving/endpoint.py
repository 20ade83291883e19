"""``serve``: the batch endpoint of a store, until it is stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from pipeline.codec import explain
from pipeline.commands.run_checks import check_setup, check_writable
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.plan.job import of_requests
from pipeline.serving.api_objects import is_loopback
from pipeline.serving.batch_queue import Runner
from pipeline.serving.store import Store
from pipeline.storage.urls import with_secrets

_LEAST_TOKEN = 16


def serve(
    run: RunConfig,
    ready: Callable[[str], None],
    *,
    host: str,
    port: int,
    token: Mapping[str, str] | None,
    runs: int,
    max_file_bytes: int,
    max_requests: int,
) -> None:
    """Serve until a signal ends it. Runs are then stopped, and a later call goes on with them.

    Args:
        run: of each batch; its output is the store, and its input is not used.
        ready: called with the address once it listens.
        host: to listen on.
        port: to listen on; of 0 the system picks one.
        token: a reference to the text that clients give as their key, ``{"env": NAME}`` or ``{"file": PATH}``; None
            asks for none, which only a loopback address may do.
        runs: batches that run at once on this machine.
        max_file_bytes: of an upload.
        max_requests: of an input file.

    Raises:
        ConfigError: a setting is at fault, a package or the token is missing, or the address cannot be used.
        PipelineError, WeDLMError: the store or the model cannot be used.
    """
    secret, run = _secret(host, token), of_requests(run)
    for name, value in {"runs": runs, "max_file_bytes": max_file_bytes, "max_requests": max_requests}.items():
        if value < 1:
            raise ConfigError(explain(name, value, "an integer of 1 or more", "Raise it."))
    try:
        import python_multipart  # noqa: F401
        import uvicorn

        from pipeline.serving.app import make_app
    except ModuleNotFoundError as error:
        raise ConfigError(f"serve needs the package {error.name}. Run: pip install 'wedlm-batch[serve]'") from None
    check_setup(run)
    store = Store(run.output, run.output_options)
    check_writable(store.storage)
    with _listening(host, port) as listening:
        store.sweep()
        runner = Runner(store, run, runs=runs, max_requests=max_requests)
        app = make_app(store, runner, token=secret, max_file_bytes=max_file_bytes)
        settings = uvicorn.Config(app, log_config=None, access_log=False, server_header=False,
                                  timeout_graceful_shutdown=5)  # fmt: skip
        ready(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/v1")
        uvicorn.Server(settings).run(sockets=[listening])


def _secret(host: str, token: Mapping[str, str] | None) -> str | None:
    if token is None:
        if not is_loopback(host):
            raise ConfigError(f"host={host!r}: other machines reach it, so it needs a token. Give --token "
                              "{env: NAME} or {file: /path}, or use 127.0.0.1.")  # fmt: skip
        return None
    secret = str(with_secrets({"token": token}, "serve")["token"])
    if len(secret) < _LEAST_TOKEN:
        raise ConfigError(f"token: it has {len(secret)} characters; at least {_LEAST_TOKEN}. Make a longer one.")
    return secret


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"host={host!r}, port={port}: cannot be used ({error}). Pick another.") from None
