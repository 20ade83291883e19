"""What runs on the workers: reading and tokenising tasks, and the actor that owns an engine.

With :mod:`pipeline.codec` the only part of the pipeline that knows ``wedlm_core``; only the generate actor
imports torch, when it starts.
"""
