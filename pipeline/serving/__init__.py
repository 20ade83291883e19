"""The batch endpoint: files and batches of OpenAI's API over a folder or an object store.

A server (``app``, ``serve``) takes requests and keeps a queue (``runner``); each batch is worked on by a child process
(``worker``), which runs it as any job and exports its rows. All state is in the store (``store``), so any process may
end at any moment. Knows HTTP, and runs as a whole; does not know rows or Ray.
"""
