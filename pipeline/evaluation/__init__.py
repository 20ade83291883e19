"""Scores of texts against expected answers, and confidence intervals. Knows no models, Ray, files or command lines."""
