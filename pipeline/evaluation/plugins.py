"""Finds the tasks: every module of ``tasks`` has one or more in ``TASKS``."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Mapping

from pipeline.errors import ConfigError
from pipeline.evaluation.task import Task

__all__ = ["all_tasks", "task_named"]


@functools.cache
def all_tasks() -> Mapping[str, Task]:
    """Every task by its name."""
    name = f"{__name__.rpartition('.')[0]}.tasks"
    package = importlib.import_module(name)
    found: dict[str, Task] = {}
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda one: one.name):
        for task in importlib.import_module(f"{name}.{module.name}").TASKS:
            if task.name in found:
                raise ConfigError(f"two tasks are called {task.name!r}. Rename that of {module.name}.")
            found[task.name] = task
    return found


def task_named(name: str) -> Task:
    """The task of this name.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    tasks = all_tasks()
    if name in tasks:
        return tasks[name]
    near = difflib.get_close_matches(str(name), tasks, n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else "Name one of these."
    raise ConfigError(f"task={name!r}: not one of {sorted(tasks)}. {remedy}")
