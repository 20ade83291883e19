"""How many masks each sequence gets in a forward: acceptance estimated, a forward priced, masks allocated.

Knows counts, costs and slots by number; knows no tensor, no model and no request's text.
"""
