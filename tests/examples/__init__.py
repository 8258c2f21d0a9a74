"""Tests of the examples: each runs as its README says, on both engines."""
