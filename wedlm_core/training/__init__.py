"""Training of WeDLM models: dual-stream masking, loss, optimisers, trainer.

Knows the decoder, the reorder that decoding uses too, and checkpoint files. Knows nothing of the engine, the KV pool or
decoding.
"""
