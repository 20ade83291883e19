"""The tasks, a module each: its ``TASKS`` are found by themselves (:mod:`pipeline.evaluation.plugins`).

Columns are those of the public data sets. Few-shot counts, lengths and temperatures are those of the evaluation suite that
WeDLM's authors released with arXiv 2512.22737 (github.com/Tencent/WeDLM, ``evaluation/datasets``); instructions and
examples are our own.
"""
