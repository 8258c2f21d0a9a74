"""Places for a server to listen at: taken before anything is said, so that a port in use is one clear sentence."""

import socket

from evenflow import EvenflowError


def listeners(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of a host; port 0 is one that is free.

    >>> for each in listeners("127.0.0.1", 0):
    ...     each.close()
    """
    found: list[socket.socket] = []
    try:
        names = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in names:
            found.append(socket.create_server(address[:2], family=family))
    except OSError as error:
        for each in found:
            each.close()
        why = str(error.strerror or error).partition(" (")[0].lower()  # Python names the address once more
        raise EvenflowError(f"cannot listen on {host}:{port}: {why}; choose another --port") from error
    return found
