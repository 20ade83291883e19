"""What waits for a GPU: each section of ``python -m benchmarks.gpu.suite``."""
