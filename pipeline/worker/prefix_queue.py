"""A queue of requests: first in, first out between windows, ordered by prefix inside each window."""

from __future__ import annotations

from collections import deque

from pipeline.codec import Request

__all__ = ["PrefixQueue"]


class PrefixQueue:
    """A queue that hands out requests with a common prefix one after the other.

    It sorts the oldest ``window`` requests by token ids and hands all of them out before it sorts the next ones. So a
    shared prefix is still in the engine's cache when the next row needs it, and no request is overtaken by more than
    ``window - 1`` later ones. The tokens that a row generates do not depend on the order.

    Args:
        window: requests that are sorted at once, 1 or more; 1 is first in, first out.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._incoming: deque[Request] = deque()
        self._ordered: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._incoming) + len(self._ordered)

    def put(self, request: Request) -> None:
        """Add a request."""
        self._incoming.append(request)

    def pop(self) -> Request:
        """Remove and return the next request; raises IndexError if the queue is empty."""
        if not self._ordered:
            window = [self._incoming.popleft() for _ in range(min(self._window, len(self._incoming)))]
            self._ordered.extend(sorted(window, key=lambda request: request.prompt_token_ids))
        return self._ordered.popleft()
