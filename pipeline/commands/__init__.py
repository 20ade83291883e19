"""The public commands, one module each: run, read, status, preview, estimate, calibrate, validate, verify.

Knows all other packages of the pipeline; does not know command lines or tensors. A command uses no other command,
except that the result of ``run`` can be read; parts that several commands need are modules of their own, here or below.
"""
