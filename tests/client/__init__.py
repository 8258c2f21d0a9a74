"""Tests of what producers and operators use, on real databases."""
