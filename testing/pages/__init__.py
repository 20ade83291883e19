"""The pages of the documentation: their code blocks, the runner of these, and the site made of the pages.

Knows Markdown, notebooks and mkdocs. Does not know the subjects of pages, except for the names of the packages.
"""
