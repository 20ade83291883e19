"""Random allowed tokens, for tests of samplers."""

from __future__ import annotations

import torch

from wedlm_core.decoding.allowed_tokens import AllowedRows, only, words_of_vocabulary


def random_allowed(suppress_R: torch.Tensor, vocab: int, seed: int, lines: int = 3) -> AllowedRows:
    """For rows of ``vocab`` tokens: some rows are free, some share a line of bits, to some one token is allowed.

    Words of all zeros and of all ones are among them, as they are in grammars.
    """
    generator = torch.Generator().manual_seed(seed)
    words = words_of_vocabulary(vocab)
    bits_UW = torch.randint(-(2**31), 2**31, (lines, words), generator=generator).to(torch.int32)
    kind_UW = torch.randint(0, 3, (lines, words), generator=generator)
    bits_UW[kind_UW == 0], bits_UW[kind_UW == 1] = 0, -1
    one = int(torch.randint(0, vocab, (1,), generator=generator))
    bits_UW[-1] = 0
    bits_UW[-1, one // 32] = torch.tensor([1 << one % 32]).to(torch.int32)[0]
    line_R = torch.randint(-1, lines, suppress_R.shape, generator=generator)
    alone_R = only(torch.randint(0, vocab, suppress_R.shape, generator=generator))
    line_R = torch.where(torch.rand(suppress_R.shape, generator=generator) < 0.2, alone_R, line_R)
    return AllowedRows(bits_UW=bits_UW, line_R=torch.where(suppress_R, -1, line_R))
