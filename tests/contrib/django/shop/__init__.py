"""The app of the tests' project."""
