"""Training of WeDLM models: procedural corpus, dual-stream masking, loss, optimisers, trainer.

Knows the decoder, the reorder shared with decoding, and files of checkpoints; never imports the engine.
"""
