"""The decoder network and its weights. Knows nothing of sequences, pages or sampling."""

from wedlm_core.model.decoder import Attend, Decoder

__all__ = ["Attend", "Decoder"]
