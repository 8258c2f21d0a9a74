"""Tests of the testing kit."""
