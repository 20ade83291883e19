"""Drafting: chooses the number and the source of each sequence's drafts (docs/design/drafting.md)."""
