"""The house keepers of a queue: dispatcher, scheduler, rescuer, pruner. Idempotent, so any number of hosts may run them."""
