"""Rows in, rows out, exactly once: batch generation over Ray Data.

Knows tables, files, Ray and what was committed; knows nothing of tensors, training or command lines. Names
are resolved on first use, so that importing the package pulls in neither torch nor Ray.
"""
