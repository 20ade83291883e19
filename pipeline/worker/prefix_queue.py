"""Order of arrival, but neighbours by prefix inside a bounded window."""

from __future__ import annotations

from collections import deque

from pipeline.codec import Request

__all__ = ["Lookahead"]


class Lookahead:
    """A queue that hands out requests whose prompts begin alike one after the other.

    The oldest ``window`` requests are ordered by their token ids and handed out before the next are looked at,
    so that a shared prefix is in the engine's cache when the next row needs it, and nobody is overtaken by more
    than ``window - 1`` later requests. What a row generates does not depend on the order.

    Args:
        window: requests that are ordered together, 1 or more (1 is order of arrival).
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._arrived: deque[Request] = deque()
        self._ordered: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._arrived) + len(self._ordered)

    def put(self, request: Request) -> None:
        """Take a request."""
        self._arrived.append(request)

    def pop(self) -> Request:
        """The next request; IndexError where there is none."""
        if not self._ordered:
            window = [self._arrived.popleft() for _ in range(min(self._window, len(self._arrived)))]
            self._ordered.extend(sorted(window, key=lambda request: request.prompt_token_ids))
        return self._ordered.popleft()
