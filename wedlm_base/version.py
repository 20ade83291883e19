"""The version of this distribution; ``pyproject.toml`` takes it from here."""

VERSION = "0.1.0"
