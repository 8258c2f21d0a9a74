"""Tests of the documentation: its code runs, its tables agree with the code, its links lead somewhere."""
