"""Decoding rules: windows, selection, sampling, verification, stopping. Knows logits; knows no model, KV pool or rows."""
