"""Jinja templates for tests: attacks, and chat templates like those of published models."""
