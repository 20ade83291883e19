"""One public verb a module: run, read, status, preview, estimate, calibrate, validate, verify; and what they share.

Knows every room below: cluster, worker, prompts, plan, commit, sources, sinks, storage. Knows no command line and no
tensor. A verb needs nothing of another verb; what two of them need is in a module of its own here, or below.
"""
