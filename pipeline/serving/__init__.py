"""The batch endpoint: files and batches of OpenAI's API over a folder or an object store.

A server (``app``, ``endpoint``) takes requests and keeps a queue (``batch_queue``). A child process
(``batch_process``) runs each batch as any job, and exports its rows. All state is in the store (``store``), so any
process may end at any moment. Knows HTTP, and runs as a whole; does not know rows or Ray.
"""
