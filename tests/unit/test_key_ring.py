"""Keys, envelopes and what a kind may declare if it is encrypted."""

import base64
import pickle
import sys
from typing import Any

import msgspec
import pytest

from dutiful import CannotOpen, Concurrency, Dutiful, KeyRing, Rules, UsageError
from dutiful.core.sealed import Owner, envelope_of, is_sealed, key_ids, shown, shown_within
from dutiful.payload.key_ring import JobSeal, new_key, read_keys
from dutiful.payload.sealing import open_error, seal_error, seal_items
from dutiful.settings import load, without_secrets

ONE, TWO = b"1" * 32, b"2" * 32
OWNER = Owner("0193a1b2-0000-7000-8000-000000000001", "acme", "pay", "payload")
LATER = msgspec.structs.replace


def test_a_value_opens_for_its_owner_only() -> None:
    ring = KeyRing({"k1": ONE})
    envelope = ring.seal(b'{"card":4111}', OWNER)
    assert ring.open(envelope, OWNER) == b'{"card":4111}'
    for change, said in (
        ({"job": "another"}, "another job"),
        ({"tenant": None}, "another tenant"),
        ({"kind": "refund"}, "another kind"),
        ({"part": "result"}, "another field"),
    ):
        with pytest.raises(CannotOpen, match=said):
            ring.open(envelope, LATER(OWNER, **change))
        # To change the envelope's own words as well is to change what is authenticated.
        forged = LATER(envelope, of=LATER(OWNER, **change))
        with pytest.raises(CannotOpen, match="changed since it was sealed"):
            ring.open(forged, forged.of)


def test_equal_values_have_nothing_in_common_when_sealed() -> None:
    ring = KeyRing({"k1": ONE})
    assert ring.seal(b"same", OWNER).text[:24] != ring.seal(b"same", OWNER).text[:24]


def test_a_changed_or_cut_text_does_not_open() -> None:
    ring = KeyRing({"k1": ONE})
    envelope = ring.seal(b"text", OWNER)
    data = base64.b64decode(envelope.text)
    for text in (data[:-1], b"", bytes([data[0] ^ 1]) + data[1:], data[:12] + bytes([data[12] ^ 1]) + data[13:]):
        with pytest.raises(CannotOpen, match="changed since it was sealed"):
            ring.open(LATER(envelope, text=base64.b64encode(text).decode()), OWNER)
    with pytest.raises(CannotOpen):
        ring.open(LATER(envelope, text="no Base64!"), OWNER)


def test_the_first_key_seals_and_all_open() -> None:
    old, both = KeyRing({"k1": ONE}), KeyRing({"k2": TWO, "k1": ONE})
    envelope = old.seal(b"text", OWNER)
    assert both.open(envelope, OWNER) == b"text"
    again = both.reseal(envelope)
    assert (again.key, again.of) == ("k2", OWNER)
    with pytest.raises(CannotOpen, match="sealed with the key 'k2', which is not in the ring here \\(k1\\)") as caught:
        old.open(again, OWNER)
    assert caught.value.key == "k2"
    with pytest.raises(CannotOpen, match="another one under the same id"):
        KeyRing({"k1": TWO}).open(envelope, OWNER)


def test_keys_are_read_from_text_and_never_shown() -> None:
    texts = f"2026-11:{new_key()},2026-05:{base64.b64encode(ONE).decode()}".split(",")
    ring = KeyRing.read(texts)
    assert (ring.ids, ring.current, repr(ring)) == (("2026-11", "2026-05"), "2026-11", "<key ring of 2026-11, 2026-05>")
    secret = texts[0].partition(":")[2]
    settings = load({}, environ={"DUTIFUL_ENCRYPTION_KEYS": ",".join(texts)})
    assert settings.encryption_keys == tuple(texts) and secret not in repr(settings)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(ring)


@pytest.mark.parametrize(
    "text", ["s3cret", "k1:s3cret", "k 1:s3cret", f"k1:{base64.b64encode(b's3cret' * 3).decode()}", "k1:", ":", ""]
)
def test_a_malformed_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_keys([text])
    assert "s3cret" not in str(caught.value)


def test_a_key_id_is_used_once() -> None:
    with pytest.raises(UsageError, match="two keys 'k1'"):
        read_keys([f"k1:{new_key()}", f"k1:{new_key()}"])
    with pytest.raises(UsageError, match="needs a key"):
        KeyRing({})


def test_processes_of_jobs_do_not_get_the_keys() -> None:
    environ = without_secrets({"DUTIFUL_ENCRYPTION_KEYS": f"k1:{new_key()}", "DUTIFUL_ENCRYPTED": "1"})
    app = Dutiful(encryption_keys=environ["DUTIFUL_ENCRYPTION_KEYS"].split(","), encrypted=True)
    assert app.key_ring is None  # so that it cannot seal with a key that others know


def test_without_its_package_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(UsageError, match=r"pip install 'dutiful\[encryption\]'"):
        KeyRing({"k1": ONE})


def test_only_a_whole_envelope_counts_as_sealed() -> None:
    sealed = JobSeal(KeyRing({"k1": ONE}), "job", None, "pay").seal("payload", '{"a":1}')
    assert is_sealed(sealed) and envelope_of(sealed) is not None
    assert shown(sealed) == {"$sealed": {"key": "k1"}}
    inside = {"errors": [{"type": "E", **sealed}], "message": msgspec.json.encode(sealed).decode()}
    assert key_ids(inside) == ["k1", "k1"] and "text" not in str(shown_within(inside))
    for user in ({"$sealed": "a letter"}, {"$sealed": {"key": "k1"}}, {"a": 1}, [1], "x", None):
        assert not is_sealed(user) and shown(user) == user


def test_an_error_keeps_what_lists_need_and_seals_the_rest() -> None:
    seal = JobSeal(KeyRing({"k1": ONE}), "job", None, "pay")
    error = {"type": "Declined", "message": "4111", "traceback": "4111", "class": "retryable", "fingerprint": "ab"}
    sealed = seal_error(seal, error)
    assert (sealed["type"], sealed["class"], sealed["message"]) == ("Declined", "retryable", "(sealed)")
    assert sealed["fingerprint"] == seal_error(seal, error)["fingerprint"] != "ab"
    assert "4111" not in str(sealed) and "traceback" not in sealed
    assert open_error(seal, sealed) == error


def test_items_keep_their_counts() -> None:
    seal = JobSeal(KeyRing({"k1": ONE}), "job", None, "pay")
    items = {
        "total": 4,
        "in_progress": ["Ada"],
        "completed": ["Bob"],
        "skipped": [{"item": "Cid", "reason": "Cid"}],
        "failed": [{"item": "Dora", "error": "Dora"}],
    }
    sealed = seal_items(seal, items)
    assert all(len(sealed[name]) == 1 for name in ("in_progress", "completed", "skipped", "failed"))
    assert not any(name in str(sealed) for name in ("Ada", "Bob", "Cid", "Dora"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rules": Rules(unique="account")}, "store the field 'account' in clear, as unique"),
        ({"rules": Rules(correlation_id="account")}, "store the field 'account' in clear, as correlation_id"),
        ({"concurrency": Concurrency(limit=1, key="account")}, "stores the field 'account' in clear"),
        ({"encrypted": "yes"}, "must be True or False"),
    ],
)
def test_what_would_be_stored_in_clear_is_refused(options: dict[str, Any], said: str) -> None:
    app = Dutiful(encryption_keys=[f"k1:{new_key()}"])

    def pay(account: str) -> None: ...

    with pytest.raises(UsageError, match=said):
        app.job(**{"encrypted": True, **options})(pay)


async def test_an_app_that_encrypts_everything_refuses_it_at_enqueue() -> None:
    app = Dutiful("sqlite:///:memory:", encryption=KeyRing({"k1": ONE}))

    @app.job(concurrency=Concurrency(limit=1, key="account"))
    def pay(account: str) -> None: ...

    @app.job(concurrency=Concurrency(limit=1, key="tenant"), encrypted=False)
    def plain(account: str) -> None: ...

    assert (pay.encrypted, plain.encrypted) == (True, False)
    with pytest.raises(UsageError, match="stores the field 'account' in clear"):
        pay.seal(pay.prepare(pay._defaults, {"account": "7"}))


def test_a_key_that_is_no_ring_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="must be a KeyRing") as caught:
        Dutiful(encryption="s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in str(caught.value)


def test_keys_without_ids_are_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="must be a mapping of ids to keys") as caught:
        KeyRing("c2VjcmV0")  # type: ignore[arg-type]
    assert "c2VjcmV0" not in str(caught.value)
