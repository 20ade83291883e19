"""Tools that tests and benchmarks share; shipped in neither package.

``testing`` knows ``wedlm_core`` (its kernels and its engine) and imports nothing of ``pipeline``, ``jobs``, ``tests``
or ``benchmarks``.
"""
