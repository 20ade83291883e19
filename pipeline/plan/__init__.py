"""What a run is to do: the job, its units, what of them is left, and whether the input is still what was planned.

Knows sources and what is committed; knows no prompt, no engine and no Ray.
"""
