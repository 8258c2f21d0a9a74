"""Tests of Evenflow inside of other frameworks."""
