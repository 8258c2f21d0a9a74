"""Tests of Evenflow, one file per module; the servers they need are in `postgres_server` and `pgbouncer`."""
