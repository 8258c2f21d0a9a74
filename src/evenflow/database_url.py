"""Database addresses: which database a URL means, and how it is shown without its secrets. Opens nothing."""

import re
from dataclasses import dataclass
from typing import Literal

_FORMS = "write sqlite:///jobs.db, sqlite:////var/lib/jobs.db or postgresql://user:password@host/database"
_POSTGRES = ("postgresql", "postgres")
_SECRET_OPTION = re.compile(r"(?i)\b((?:ssl)?password|passfile)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True, repr=False)
class DatabaseUrl:
    """Where the jobs live: `path` for SQLite (None in memory), `conninfo` for PostgreSQL.

    >>> parse_url("sqlite:///jobs.db").path
    'jobs.db'
    """

    kind: Literal["sqlite", "postgres"]
    path: str | None = None
    conninfo: str = ""

    @property
    def memory(self) -> bool:
        """Whether this is a SQLite database that lives and dies with its process."""
        return self.kind == "sqlite" and self.path is None

    def masked(self) -> str:
        """The address as it may be printed: without passwords.

        >>> parse_url("postgresql://bob:secret@db/jobs?sslpassword=x").masked()
        'postgresql://bob:***@db/jobs?sslpassword=***'
        """
        if self.kind == "postgres":
            return mask_secrets(self.conninfo)
        return f"sqlite:///{':memory:' if self.path is None else self.path}"

    def __repr__(self) -> str:
        return f"DatabaseUrl({self.masked()!r})"


def parse_url(url: str) -> DatabaseUrl:
    """Read a database URL, or raise ValueError that says what to write instead.

    >>> parse_url("sqlite:///:memory:").memory
    True
    """
    found = _SCHEME.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        raise ValueError(f"expected a database URL, got {mask_secrets(str(url))!r}; {_FORMS}")
    scheme, rest = found[1].lower(), found[2]
    if "\0" in url or (any(character.isspace() for character in url) and scheme in _POSTGRES):
        raise ValueError(
            f"expected a URL without blanks or NUL, got {mask_secrets(url)!r}; percent-encode them"
        )
    if scheme == "sqlite":
        return _sqlite(url, rest)
    if scheme in _POSTGRES:
        return _postgres(url, rest)
    raise ValueError(_foreign(scheme, url))


def mask_secrets(text: str) -> str:
    """Any address or connection text with its passwords replaced by `***`.

    >>> mask_secrets("host=db password='a b' user=bob")
    'host=db password=*** user=bob'
    """
    scheme, slashes, rest = text.partition("://")
    if slashes and "@" in rest:
        # The last @ of all: a password that was not encoded may hold one, and hiding too much is no harm.
        login, _, place = rest.rpartition("@")
        user, colon, _ = login.partition(":")
        text = f"{scheme}://{user}{':***' if colon else ''}@{place}"
    return _SECRET_OPTION.sub(r"\1\2***", text)


def _sqlite(url: str, rest: str) -> DatabaseUrl:
    if rest in ("///:memory:", "//:memory:"):
        return DatabaseUrl("sqlite")
    if not rest.startswith("///"):
        name = rest.lstrip("/") or "jobs.db"
        raise ValueError(f"expected three slashes before the path, got {url!r}; write sqlite:///{name}")
    path = rest[3:]
    if "?" in path or "#" in path:
        raise ValueError(f"expected a plain path, got {url!r}; SQLite addresses take no options")
    if not path or path.endswith("/"):
        raise ValueError(
            f"expected the path of a file, got {url!r}; write sqlite:///jobs.db or sqlite:///:memory:"
        )
    return DatabaseUrl("sqlite", path=path)


def _postgres(url: str, rest: str) -> DatabaseUrl:
    if not rest.startswith("//"):
        raise ValueError(f"expected postgresql://…, got {mask_secrets(url)!r}; {_FORMS}")
    if re.split(r"[/?]", rest[2:], maxsplit=1)[0].count("@") > 1:
        # Its driver would take half of it for the host, and say so.
        raise ValueError(
            f"expected one '@' before the host, got {mask_secrets(url)!r}; write %40 for an '@' in a password"
        )
    place = re.split(r"[/?]", rest[2:].rpartition("@")[2], maxsplit=1)[0]
    for host in place.split(","):
        port = re.sub(r"^\[[^]]*\]", "", host).partition(":")[2]
        if port and not (_PORT.fullmatch(port) and 1 <= int(port) <= 65_535):
            # Not shown: in an address that lacks its host, this is where the password stands.
            raise ValueError(
                "expected a port from 1 to 65535 after the host's colon; write user:password@host:port"
            )
    return DatabaseUrl("postgres", conninfo=f"postgresql:{rest}")


def _foreign(scheme: str, url: str) -> str:
    base, plus, _ = scheme.partition("+")
    if plus and base in ("sqlite", *_POSTGRES):
        return (
            f"expected a URL without a driver, got {mask_secrets(url)!r}; drop '+{scheme.partition('+')[2]}'"
        )
    return f"expected a sqlite or postgresql URL, got {mask_secrets(url)!r}; {_FORMS}"
