"""The public commands, one module each: run, read, status, preview, estimate, calibrate, validate, verify.

Knows all other packages of the pipeline; does not know command lines or tensors. A command uses no other command,
except that the result of ``run`` can be read; what several of them need is in a module of its own here or below.
"""
