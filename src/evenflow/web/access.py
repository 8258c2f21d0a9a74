"""Who may do what: roles and their permissions, and the credentials that a role is given to. Knows nothing of HTTP."""

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from evenflow.errors import ConfigError

LEAST_SECRET = 8
SPECS = (
    "basic:NAME:PASSWORD:ROLE, token:SECRET:ROLE or token/NAME:SECRET:ROLE (ROLE@TENANT,TENANT holds it to some groups) or @FILE "
    "with one of these in each line"
)
Tenants = Iterable[str] | None


class Permission(StrEnum):
    """What a route needs. Every route names exactly one."""

    LOOK = "look"  # metadata: states, counts, names, times, error codes
    READ = "read"  # what jobs carry: arguments (redacted), results, messages, tracebacks, logs
    ACT = "act"  # retry, cancel, pause, change limits
    AUDIT = "audit"  # what others did
    ENQUEUE = "enqueue"  # new jobs over HTTP


class Role(StrEnum):
    """What somebody is. A role is a set of permissions, and nothing else is asked anywhere."""

    VIEWER = "viewer"
    READER = "reader"
    OPERATOR = "operator"
    ADMIN = "admin"
    PRODUCER = "producer"

    @property
    def permissions(self) -> frozenset[Permission]:
        """What this role may do.

        >>> Permission.ACT in Role.OPERATOR.permissions, Permission.READ in Role.VIEWER.permissions
        (True, False)
        """
        return _PERMISSIONS[self]


_VIEWER = frozenset({Permission.LOOK})
_READER = _VIEWER | {Permission.READ}
_OPERATOR = _READER | {Permission.ACT}
_PERMISSIONS = {
    Role.VIEWER: _VIEWER,
    Role.READER: _READER,
    Role.OPERATOR: _OPERATOR,
    Role.ADMIN: frozenset(Permission),
    Role.PRODUCER: frozenset({Permission.ENQUEUE}),
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose request it is. With `tenants`, only the jobs of these groups exist for them."""

    name: str
    role: Role
    tenants: Tenants = None

    def __post_init__(self) -> None:
        if self.tenants is not None:
            object.__setattr__(self, "tenants", _tenants(self.role, self.tenants))

    def may(self, permission: Permission) -> bool:
        """The one check of what: pages, lists, details, bulk, stream and API all ask it."""
        return permission in self.role.permissions

    @property
    def among(self) -> list[str] | None:
        """The groups that lists are held to; None is all."""
        return None if self.tenants is None else sorted(self.tenants)

    def sees(self, group: str | None) -> bool:
        """The one check of whose: whether jobs of this group exist for them.

        >>> Principal("ann", Role.VIEWER, ["acme"]).sees("acme"), Principal("ann", Role.VIEWER, ["acme"]).sees(None)
        (True, False)
        """
        return self.tenants is None or group in frozenset(self.tenants)


LOCAL = Principal("local", Role.ADMIN)
"""Whoever sits at this machine, where nobody has to log in."""


@dataclass(frozen=True, slots=True)
class Basic:
    """A name and a password, for the login page and for HTTP Basic."""

    name: str
    password: str
    role: Role | str
    tenants: Tenants = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", _role(self.role))
        if self.tenants is not None:
            object.__setattr__(self, "tenants", _tenants(Role(self.role), self.tenants))
        if not self.name or ":" in self.name:
            raise ConfigError(f"auth: expected a name without a colon, got {self.name!r}")
        _check_secret(f"the password of {self.name!r}", self.password)

    def __repr__(self) -> str:
        return f"Basic({self.name!r}, '***', {str(self.role)!r})"


@dataclass(frozen=True, slots=True)
class Token:
    """A secret for programs, sent as `Authorization: Bearer SECRET`. Tokens of one name are one caller."""

    secret: str
    role: Role | str
    name: str = "token"
    tenants: Tenants = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", _role(self.role))
        if self.tenants is not None:
            object.__setattr__(self, "tenants", _tenants(Role(self.role), self.tenants))
        _check_secret("a token", self.secret)

    def __repr__(self) -> str:
        return f"Token('***', {str(self.role)!r}, {self.name!r})"


Hook = Callable[[Any], "Principal | None"]
"""Given Starlette's request, says whose it is, or None. May be a coroutine function."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """All credentials of a site. Comparisons take the same time for every wrong answer."""

    logins: tuple[Basic, ...]
    tokens: tuple[Token, ...]

    def login(self, name: str, password: str) -> Principal | None:
        """Whom a name and a password belong to."""
        found: Principal | None = None
        for each in self.logins:
            is_name = hmac.compare_digest(each.name.encode(), name.encode("utf-8", "replace"))
            is_password = hmac.compare_digest(each.password.encode(), password.encode("utf-8", "replace"))
            if is_name & is_password:
                found = _principal(each)
        return found

    def token(self, secret: str) -> Principal | None:
        """Whom a token belongs to."""
        found: Principal | None = None
        for each in self.tokens:
            if hmac.compare_digest(each.secret.encode(), secret.encode("utf-8", "replace")):
                found = _principal(each)
        return found

    def named(self, name: str, role: str) -> Principal | None:
        """Who has logged in before, if the login is still there with that role."""
        for each in self.logins:
            if each.name == name and each.role == role:
                return _principal(each)
        return None


def credentials(given: Iterable[Basic | Token]) -> Credentials:
    """Checked together: a name that stands twice is a mistake."""
    listed = list(given)
    logins = tuple(each for each in listed if isinstance(each, Basic))
    tokens = tuple(each for each in listed if isinstance(each, Token))
    if len(logins) + len(tokens) != len(listed) or not listed:
        raise ConfigError(f"auth: expected Basic(…) and Token(…), or a function, got {given!r}")
    names = [each.name for each in logins]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"auth: {sorted(twice)[0]!r} stands there twice; give each person one login")
    return Credentials(logins, tokens)


def read_specs(specs: Iterable[str]) -> list[Basic | Token]:
    """Credentials as the command line and `EVENFLOW_WEB_AUTH` write them.

    >>> read_specs(["token:0123456789:viewer"])
    [Token('***', 'viewer', 'token')]
    """
    found: list[Basic | Token] = []
    for spec in specs:
        text = spec.strip()
        if text.startswith("@"):
            found += read_specs(_lines(Path(text[1:])))
        elif text and not text.startswith("#"):
            found.append(_credential(text))
    return found


def _principal(known: Basic | Token) -> Principal:
    return Principal(known.name, Role(known.role), known.tenants)


def _credential(text: str) -> Basic | Token:
    kind, _, rest = text.partition(":")
    body, _, said = rest.rpartition(":")
    role, at, names = said.partition("@")
    tenants = names.split(",") if at else None
    kind, slash, title = kind.partition("/")
    if kind == "token" and body and bool(slash) == bool(title):
        return Token(body, role, title or "token", tenants)
    name, _, password = body.partition(":")
    if kind == "basic" and password and not slash:
        return Basic(name, password, role, tenants)
    raise ConfigError(f"--auth: expected {SPECS}, got {_hidden(text)}")


def _hidden(text: str) -> str:
    kind = text.partition(":")[0].partition("/")[0]
    return f"'{kind}…'" if kind in ("basic", "token") else "something else"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"--auth @{path}: {error.strerror}; name a file that can be read") from error


def _role(given: Role | str) -> Role:
    if given in list(Role):
        return Role(given)
    raise ConfigError(f"auth: expected a role of {', '.join(Role)}, got {given!r}")


def _tenants(role: Role, given: Iterable[str]) -> frozenset[str]:
    if isinstance(given, str) or not all(isinstance(each, str) and each for each in given):
        raise ConfigError(f"auth: tenants: expected a list of groups, got {given!r}; write ['acme']")
    if not _OPERATOR.issuperset(role.permissions):
        raise ConfigError(f"auth: the role {role} cannot be held to tenants; use viewer, reader or operator")
    return frozenset(given)


def _check_secret(what: str, secret: str) -> None:
    if len(secret) < LEAST_SECRET:
        raise ConfigError(f"auth: {what} is shorter than {LEAST_SECRET} characters; choose a longer one")
