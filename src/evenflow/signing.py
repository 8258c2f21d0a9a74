"""Signatures over stored jobs: who wrote this, and is it what they wrote? HMAC-SHA256 under a ring of keys.

Covered: queue, task, group, job id, creation time and payload. State, attempt, due time and priority are not,
so that operators can change them. Reads no payload, no environment and no files.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from evenflow.errors import ConfigError, SignatureInvalid

Secret: TypeAlias = str | bytes

VERSION = "v1"
MIN_SECRET_BYTES = 16

_KEY_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LENGTH_BYTES = 8


class KeyRing:
    """Secrets by id. The active one signs, every one verifies, so that keys can be changed while jobs wait.

    >>> ring = KeyRing({"2026": "a secret of 16 bytes or more"}, active="2026")
    >>> job = dict(queue="docs", task="parse", job_id="42", created_at_us=1, payload="[[],{}]")
    >>> ring.verify(ring.sign(**job), **job)
    """

    __slots__ = ("_secrets", "active")

    def __init__(self, keys: Mapping[str, Secret], active: str) -> None:
        mistakes = [*_key_mistakes(keys)]
        if active not in keys:
            mistakes.append(
                f"signing_keys: the active key {active!r} is not among {', '.join(map(repr, keys))}"
            )
        if mistakes:
            raise ConfigError(mistakes)
        self.active = active
        self._secrets = {key_id: _secret_bytes(secret) for key_id, secret in keys.items()}

    @classmethod
    def build(cls, signing_keys: Mapping[str, Secret] | Sequence[Secret] | Secret) -> "KeyRing":
        """A ring from what the setting `signing_keys` may be; the first key is the active one.

        A mapping of ids to secrets, a list of secrets, or one secret. Without an id of its own a secret is
        known by a fingerprint, so that its place in the list does not matter.

        >>> KeyRing.build({"new": b"0123456789abcdef", "old": b"fedcba9876543210"}).active
        'new'
        """
        keys = signing_keys if isinstance(signing_keys, Mapping) else _by_fingerprint(signing_keys)
        if not keys:
            raise ConfigError("signing_keys: expected at least one secret, got none")
        return cls(keys, active=next(iter(keys)))

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of all keys, never the secrets."""
        return tuple(self._secrets)

    def sign(
        self,
        *,
        queue: str,
        task: str,
        job_id: str,
        created_at_us: int,
        payload: str | bytes,
        group: str | None = None,
    ) -> str:
        """The signature of a job by the active key, `v1:<key id>:<hex>`."""
        fields = _fields(queue, task, group, job_id, created_at_us, payload)
        return f"{VERSION}:{self.active}:{self._digest(self.active, fields)}"

    def verify(
        self,
        signature: str | None,
        *,
        queue: str,
        task: str,
        job_id: str,
        created_at_us: int,
        payload: str | bytes,
        group: str | None = None,
    ) -> None:
        """Return if the job is what its signer wrote, else raise `SignatureInvalid` with the reason.

        Call it before the payload is parsed.
        """
        key_id, digest = self._parts(signature)
        expected = self._digest(key_id, _fields(queue, task, group, job_id, created_at_us, payload))
        if not hmac.compare_digest(expected.encode("ascii"), digest.encode("utf-8", "surrogatepass")):
            raise SignatureInvalid(f"the signature by key {key_id!r} does not match the job")

    def _parts(self, signature: str | None) -> tuple[str, str]:
        if not signature:
            raise SignatureInvalid("the job is not signed")
        parts = signature.split(":")
        if len(parts) != 3:
            raise SignatureInvalid("the signature is malformed; expected version, key id and digest")
        version, key_id, digest = parts
        if version != VERSION:
            raise SignatureInvalid(f"the signature has version {version[:8]!r}; expected {VERSION!r}")
        if key_id not in self._secrets:
            raise SignatureInvalid(
                f"the signature is by the unknown key {key_id[:64]!r}; add it to signing_keys"
            )
        return key_id, digest

    def _digest(self, key_id: str, fields: Iterable[bytes]) -> str:
        message = b"".join(map(_prefixed, (VERSION.encode(), key_id.encode(), *fields)))
        return hmac.digest(self._secrets[key_id], message, "sha256").hex()

    def __repr__(self) -> str:
        return f"KeyRing(key_ids={self.key_ids}, active={self.active!r})"


def _fields(
    queue: str, task: str, group: str | None, job_id: str, created_at_us: int, payload: str | bytes
) -> tuple[bytes, ...]:
    stored = payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else payload
    texts = (queue, task, "-" if group is None else "+" + group, job_id, str(created_at_us))
    return (*(text.encode("utf-8", "surrogatepass") for text in texts), hashlib.sha256(stored).digest())


def _prefixed(field: bytes) -> bytes:
    # With its length before each field, no two different jobs can give the same message.
    return len(field).to_bytes(_LENGTH_BYTES, "big") + field


def _secret_bytes(secret: Secret) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret


def _key_mistakes(keys: Mapping[Any, Any]) -> Iterable[str]:
    for key_id, secret in keys.items():
        if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
            yield f"signing_keys: expected key ids of letters, digits, '_', '.' and '-', got {key_id!r}"
        if not isinstance(secret, str | bytes):
            yield f"signing_keys: expected secrets of text or bytes, {key_id!r} is {type(secret).__name__}"
        elif len(_secret_bytes(secret)) < MIN_SECRET_BYTES:
            yield f"signing_keys: expected secrets of {MIN_SECRET_BYTES} bytes or more, {key_id!r} is shorter"


def _by_fingerprint(secrets: Sequence[Secret] | Secret) -> dict[str, Secret]:
    ring = [secrets] if isinstance(secrets, str | bytes) else list(secrets)
    strangers = [type(secret).__name__ for secret in ring if not isinstance(secret, str | bytes)]
    if strangers:
        raise ConfigError(f"signing_keys: expected secrets of text or bytes, got {', '.join(strangers)}")
    return {_fingerprint(secret): secret for secret in ring}


def _fingerprint(secret: Secret) -> str:
    return hashlib.sha256(b"evenflow key id\0" + _secret_bytes(secret)).hexdigest()[:12]
