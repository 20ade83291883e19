"""Templates as strangers write them, and those of published models."""
