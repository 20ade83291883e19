"""The tasks, a module each: its ``TASKS`` are found by themselves (:mod:`pipeline.evaluation.plugins`).

Columns are those of the public data sets. Few-shot counts, lengths and temperatures are those of the evaluation suite of
WeDLM's authors (arXiv 2512.22737), as read in a fork of their repository (github.com/naoro/WeDLM,
``evaluation/datasets``); instructions and examples are our own.
"""
