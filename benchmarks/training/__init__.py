"""Training of the shipped model."""
