"""The worth of evidence: accuracy of the rows that a filter keeps, and of the best of several samples."""
