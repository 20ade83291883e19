"""The report of an output: aggregates of its rows, made while they are written, and the page that shows them.

Knows the columns of the output, histograms, SVG and HTML; does not know where rows are stored, how they are committed,
Ray or the engine. An aggregate has a fixed size, whatever the number of rows, and aggregates of parts of a table merge,
in any order, to the aggregate of the table. All text of rows is foreign: it reaches a page through
:func:`pipeline.reporting.text.escape` or as JSON that cannot end a script.
"""
