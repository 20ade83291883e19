"""Command-line jobs: thin wrappers that parse a configuration and call ``pipeline`` or ``wedlm_core``."""
