"""Faults on purpose: killed workers and servers, broken networks, frozen processes; and ledgers that count every job."""
