"""What type checkers make of the public face: `accepted` has no error, every marked line of `refused` has one."""
