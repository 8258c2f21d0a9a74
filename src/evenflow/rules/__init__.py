"""The rules of flow control as pure functions: values in, values out.

Nothing here reads a clock, draws a random number, or touches a file, a socket or a database.
"""
