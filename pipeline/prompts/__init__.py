"""Turns input rows into token ids: renders templates and chats, tokenises; finds and checks the model's files.

Knows the job, hidden columns of its source, a tokenizer, and the stored rows of an earlier attempt (to retry failed
rows only). Does not know engines, Ray, the ledger or publishing.
"""
