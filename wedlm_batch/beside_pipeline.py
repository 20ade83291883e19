"""Our packages down to ``pipeline`` where a module of the user's has that name: see :mod:`wedlm_batch.names`."""

from wedlm_batch.private import open_namespace

__path__ = open_namespace()
