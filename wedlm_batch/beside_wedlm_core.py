"""Our packages down to ``wedlm_core`` where a module of the user's has that name: see :mod:`wedlm_base.names`."""

from wedlm_base.private import open_namespace

__path__ = open_namespace()
