"""Conformance of the store: every sentence of its contract, on every engine."""
