"""The part that runs jobs: pump, slots, worker processes and their supervisor."""
