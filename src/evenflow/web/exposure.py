"""Which addresses others can reach, and what they need before anything is served there. Knows nothing of HTTP."""

import ipaddress

from evenflow.errors import ConfigError


def check_exposure(host: str, *, has_auth: bool, has_tls: bool, has_proxy: bool) -> None:
    """ConfigError for an address that others can reach without login, or with passwords in plain text."""
    if is_loopback(host):
        return
    mistakes = []
    if not has_auth:
        mistakes.append(
            f"--host {host} can be reached from other machines, so it needs a login: add --auth, or keep to 127.0.0.1"
        )
    if not (has_tls or has_proxy):
        mistakes.append(
            f"--host {host} would send passwords in plain text: add --tls-cert and --tls-key, or name the proxy that "
            "speaks TLS with --trusted-proxy ADDRESS"
        )
    if mistakes:
        raise ConfigError(mistakes)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
