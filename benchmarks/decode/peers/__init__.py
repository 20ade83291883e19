"""Other engines, each a program for an interpreter of its own that has that engine and not this project.

A program is started as ``python FILE MODEL_FOLDER THREADS NUMBERS``. It loads the model, prints a line of JSON
(``{"engine": ..., "version": ...}``), and answers each line
``{"prompts": [[ids]], "new": n, "sampling": {"temperature": t, "top_k": k, "top_p": p, "presence_penalty": r}}`` with
``{"seconds": wall clock, "ids": [[ids]]}``: exactly ``n`` tokens a prompt, all prompts in one
batch. Temperature 0 is greedy; a setting that is left out is off.
"""
