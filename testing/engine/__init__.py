"""Models, engines and reference cases that tests and benchmarks of ``wedlm_core`` share."""
