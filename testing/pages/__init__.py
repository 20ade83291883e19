"""The pages of the documentation: their code blocks, what runs these, and the site that is made of the pages.

Knows Markdown, notebooks and mkdocs. Does not know what the pages are about, except for the names of the packages.
"""
