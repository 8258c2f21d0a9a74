"""Tests of the services: dispatcher, rescuer, undertaker, pruner, and the keeper that runs them."""
