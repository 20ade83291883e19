"""Evaluation: what a task asks, what counts as its answer, and how sure a figure is.

Knows rows, texts and programs; does not know models, Ray, files of a run or command lines. Each task is a module of
``tasks``.
"""
