"""moto's server with a cache for values that it computes in each request: ``python -m testing.pipeline.s3_server``.

Arguments are those of ``moto.server``. For each request it lists its own package and tries the patterns of all services
to find the one, and for each object of a listing it parses a time. These were two thirds of its time.
"""

from __future__ import annotations

import functools

import botocore.utils
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main

if __name__ == "__main__":
    botocore.utils.parse_timestamp = functools.lru_cache(10_000)(botocore.utils.parse_timestamp)
    find = DomainDispatcherApplication.get_backend_for_host
    DomainDispatcherApplication.get_backend_for_host = functools.lru_cache(100)(find)  # type: ignore[method-assign]
    main()
