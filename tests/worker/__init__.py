"""Tests of the worker: its parts, its processes, its stop, and what it bears."""
