"""What several tests need: small real models, and the conformance cases."""
