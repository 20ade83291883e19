"""Shared by tests and benchmarks: models, oracles, fakes, an S3 server, Ray nodes, simulations.

``testing`` knows ``wedlm_core`` and ``pipeline``. It imports nothing from ``jobs``, ``tests`` or ``benchmarks``, no
package imports it but those two, and no distribution contains it.
"""
