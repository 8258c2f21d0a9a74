"""Tests of the pure rules: examples for what the docs say, properties for what must never happen."""
