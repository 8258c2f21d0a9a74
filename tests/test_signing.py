"""A signature holds for exactly the job that was signed, by any key of the ring, and for no other."""

import doctest
import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenflow import signing
from evenflow.errors import ConfigError, SignatureInvalid
from evenflow.signing import KeyRing

OLD, NEW = b"old secret, 16 bytes or more", "new secret, 16 bytes or more"
JOB: dict[str, Any] = {
    "queue": "docs",
    "task": "parse",
    "group": "bob",
    "job_id": "0042",
    "created_at_us": 1_770_000_000_000_000,
    "payload": '[["a"],{}]',
}
RING = KeyRing({"new": NEW, "old": OLD}, active="new")


def test_a_signed_job_is_verified() -> None:
    RING.verify(RING.sign(**JOB), **JOB)


def test_the_signature_is_version_key_id_and_the_documented_digest() -> None:
    version, key_id, digest = RING.sign(**JOB).split(":")
    payload = hashlib.sha256(b'[["a"],{}]').digest()
    fields = [b"v1", b"new", b"docs", b"parse", b"+bob", b"0042", b"1770000000000000", payload]
    message = b"".join(len(field).to_bytes(8, "big") + field for field in fields)
    assert (version, key_id) == ("v1", "new")
    assert digest == hmac.new(NEW.encode(), message, "sha256").hexdigest()


def test_text_and_bytes_of_a_payload_are_the_same() -> None:
    RING.verify(RING.sign(**JOB), **{**JOB, "payload": b'[["a"],{}]'})


TEXTS = st.text(max_size=8)
JOBS = st.fixed_dictionaries(
    {
        "queue": TEXTS,
        "task": TEXTS,
        "group": st.none() | TEXTS,
        "job_id": TEXTS,
        "created_at_us": st.integers(0, 1 << 62),
        "payload": TEXTS,
    }
)


@settings(deadline=None)
@given(signed=JOBS, presented=JOBS)
def test_no_other_job_passes_under_a_signature(signed: dict[str, Any], presented: dict[str, Any]) -> None:
    assume(signed != presented)
    signature = RING.sign(**signed)
    RING.verify(signature, **signed)
    with pytest.raises(SignatureInvalid, match="the signature by key 'new' does not match the job"):
        RING.verify(signature, **presented)


@pytest.mark.parametrize("field", JOB)
def test_a_change_of_any_field_is_noticed(field: str) -> None:
    changed = 1 if field == "created_at_us" else JOB[field] + "x"
    with pytest.raises(SignatureInvalid, match="does not match"):
        RING.verify(RING.sign(**JOB), **{**JOB, field: changed})


def test_text_moved_from_one_field_to_the_next_is_noticed() -> None:
    signature = RING.sign(**{**JOB, "queue": "ab", "task": "c"})
    with pytest.raises(SignatureInvalid, match="does not match"):
        RING.verify(signature, **{**JOB, "queue": "a", "task": "bc"})


def test_no_group_and_an_empty_group_are_different() -> None:
    with pytest.raises(SignatureInvalid, match="does not match"):
        RING.verify(RING.sign(**{**JOB, "group": None}), **{**JOB, "group": ""})


@settings(deadline=None)
@given(st.text(max_size=12), st.integers(0, 80))
def test_a_changed_signature_is_refused(insert: str, place: int) -> None:
    signature = RING.sign(**JOB)
    changed = signature[:place] + insert + signature[place + 1 :]
    assume(changed != signature)
    with pytest.raises(SignatureInvalid):
        RING.verify(changed, **JOB)


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (None, "the job is not signed"),
        ("", "the job is not signed"),
        ("v1:new", "the signature is malformed"),
        ("v1:new:00:00", "the signature is malformed"),
        ("v0:new:00", "the signature has version 'v0'; expected 'v1'"),
        ("v1:lost:00", "the signature is by the unknown key 'lost'; add it to signing_keys"),
        ("v1:new:", "does not match"),
        ("v1:new:\ud800é", "does not match"),
    ],
)
def test_a_signature_that_cannot_hold_says_why(signature: str | None, reason: str) -> None:
    with pytest.raises(SignatureInvalid) as caught:
        RING.verify(signature, **JOB)
    assert reason in str(caught.value)


def test_keys_are_changed_without_refusing_what_waits() -> None:
    before = KeyRing.build({"old": OLD})
    during = KeyRing.build({"new": NEW, "old": OLD})
    after = KeyRing.build({"new": NEW})
    waiting = before.sign(**JOB)
    during.verify(waiting, **JOB)
    assert during.sign(**JOB).startswith("v1:new:")
    after.verify(during.sign(**JOB), **JOB)
    with pytest.raises(SignatureInvalid, match="unknown key 'old'"):
        after.verify(waiting, **JOB)


def test_a_key_id_of_another_secret_does_not_verify() -> None:
    with pytest.raises(SignatureInvalid, match="does not match"):
        KeyRing.build({"new": OLD}).verify(RING.sign(**JOB), **JOB)


def test_a_list_knows_its_secrets_wherever_they_stand() -> None:
    waiting = KeyRing.build([OLD]).sign(**JOB)
    KeyRing.build([NEW, OLD]).verify(waiting, **JOB)
    KeyRing.build(OLD).verify(waiting, **JOB)
    assert KeyRing.build([NEW, OLD]).active == KeyRing.build(NEW).active


def test_a_ring_shows_its_ids_and_never_a_secret() -> None:
    assert repr(RING) == "KeyRing(key_ids=('new', 'old'), active='new')"
    assert "secret" not in repr(KeyRing.build(NEW))


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"a": "short"}, "expected secrets of 16 bytes or more, 'a' is shorter"),
        ("fifteen letters", "expected secrets of 16 bytes or more"),
        ([OLD, b"short"], "expected secrets of 16 bytes or more"),
        ({"a:b": OLD}, "expected key ids of letters"),
        ({"": OLD}, "expected key ids of letters"),
        ({7: OLD}, "expected key ids of letters"),
        ({"a": 20}, "expected secrets of text or bytes, 'a' is int"),
        ([20], "expected secrets of text or bytes, got int"),
        ({}, "expected at least one secret, got none"),
        ([], "expected at least one secret, got none"),
    ],
)
def test_a_weak_or_malformed_key_is_refused(keys: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeyRing.build(keys)
    assert reason in str(caught.value)
    assert "short" not in str(caught.value).replace("is shorter", "")


def test_every_mistake_in_a_ring_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        KeyRing({"a b": "short", "b": 1}, active="c")  # type: ignore[dict-item]
    assert len(caught.value.mistakes) == 4


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(signing).failed == 0
