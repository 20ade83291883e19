"""The pipeline: efficiency against the bare engine, overhead, and kills and damages."""
