"""Drafting: how many drafts each sequence gets, and from which source (docs/design/drafting.md)."""
