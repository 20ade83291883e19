"""Models, oracles, attention problems, engine drivers and conformance cases for ``wedlm_core``."""
