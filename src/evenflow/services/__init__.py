"""The house keepers of a queue: dispatcher, scheduler, rescuer, pruner, spacer. Idempotent, so any number of hosts may run them."""
