"""References of docstrings, without the markup of Sphinx."""

from __future__ import annotations

from testing.pages.roles import plain_roles


def test_roles_become_code_and_a_tilde_shortens() -> None:
    assert plain_roles("see :class:`LLM`, :func:`~pipeline.commands.run.run`") == "see `LLM`, `run`"
    assert plain_roles(":py:meth:`a.b` and ``code``") == "`a.b` and ``code``"
