"""Tests of the Django backend, in a project of their own: `project.py` holds its settings, `shop` is its app."""
