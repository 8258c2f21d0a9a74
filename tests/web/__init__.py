"""Tests of the dashboard and its API."""
