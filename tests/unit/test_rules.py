"""Rules for payloads: what they check, and that all violations are reported at once."""

import pickle
import tracemalloc
from collections.abc import Mapping
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import secret_cases
from dutiful import Dutiful, FieldError, OnConflict, PayloadInvalid, Rules, Scope, Unique, UsageError
from dutiful.core.redaction.redact import REDACTED
from dutiful.kind import Kind
from dutiful.options import Options, read_options

JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
COMMON = Rules(
    required={"tenant_id": int, "correlation_id": UUID, "idempotency_key": str},
    tenant="tenant_id",
    correlation_id="correlation_id",
    unique=Unique("idempotency_key", Scope.FOREVER, OnConflict.REJECT, across_kinds=True),
    versions=["1.0"],
)
GOOD = {
    "tenant_id": 123,
    "correlation_id": "550e8400-e29b-41d4-a716-446655440000",
    "idempotency_key": "email_fetch_conn_456_msg_789",
    "connection_id": 456,
    "external_message_id": "msg_789",
}
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
LEAF = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


@pytest.fixture
def app() -> Dutiful:
    app = Dutiful()
    app.category("ingestion", COMMON.plus(Rules(references=["connection_id"])))
    return app


@pytest.fixture
def fetch(app: Dutiful) -> Kind[..., None]:
    @app.job(category="ingestion")
    async def fetch(connection_id: int, external_message_id: str) -> None: ...

    return fetch


def fields(kind: Kind[..., Any], payload: Mapping[str, Any]) -> list[str]:
    return [error.field for error in kind.problems(payload)]


def open_kind(rules: Rules) -> Kind[..., None]:
    """A kind that takes anything, so that its rules alone decide."""

    async def take(data: Any = None) -> None: ...

    return Dutiful().job(name="take", rules=rules)(take)


ROOMY = open_kind(Rules(limit=1_000_000))
STRICT = open_kind(COMMON.plus(Rules(references=["connection_id"], limit=1_000_000)))


@pytest.mark.req("W7", "W12", "W64")
def test_a_payload_that_keeps_to_the_rules_has_no_problems(app: Dutiful, fetch: Kind[..., None]) -> None:
    assert app.validate("fetch", GOOD) == app.validate(fetch, GOOD) == []


@pytest.mark.req("W3", "W4", "W5", "W6", "W16", "W64")
@pytest.mark.parametrize("field", ["tenant_id", "correlation_id", "idempotency_key", "connection_id"])
def test_what_is_required_must_be_there_and_not_empty(fetch: Kind[..., None], field: str) -> None:
    without = {name: value for name, value in GOOD.items() if name != field}
    for payload in (without, {**GOOD, field: None}, {**GOOD, field: ""}, {**GOOD, field: "  "}):
        assert fields(fetch, payload) == [field]


@pytest.mark.req("W3", "W4", "W5", "W64")
@pytest.mark.parametrize(
    ("field", "value"),
    [("tenant_id", "123"), ("tenant_id", True), ("tenant_id", 1.5), ("correlation_id", "order 7"),
     ("correlation_id", 7), ("idempotency_key", 7), ("idempotency_key", "k" * 501), ("idempotency_key", " k"),
     ("idempotency_key", ["k"])],
)  # fmt: skip
def test_what_is_required_must_be_of_its_type(fetch: Kind[..., None], field: str, value: Any) -> None:
    assert fields(fetch, {**GOOD, field: value}) == [field]


@pytest.mark.req("W9")
def test_a_reference_is_an_id_and_no_content() -> None:
    kind = open_kind(Rules(references=["document_id"]))
    for good in (7, "doc_7", [7, "doc_8"]):
        assert kind.problems({"document_id": good}) == []
    for bad in ({"id": 7}, "x" * 201, 1.5, True, [], [[7]]):
        assert fields(kind, {"document_id": bad}) == ["document_id"]


@pytest.mark.req("W12", "W14", "W64")
def test_every_error_is_listed(fetch: Kind[..., None]) -> None:
    payload = {"tenant_id": "x", "password": "p", "nested": [{"apiKey": "1"}, JWT], "payload_version": "9"}
    with pytest.raises(PayloadInvalid) as caught:
        fetch.check(payload)
    found = [error.field for error in caught.value.errors]
    assert found == [
        "payload_version", "password", "nested[0].apiKey", "nested[1]", "tenant_id", "correlation_id",
        "idempotency_key", "connection_id", "external_message_id", "nested",
    ]  # fmt: skip
    assert all(f"{error.field} {error.problem}" in str(caught.value) for error in caught.value.errors)
    assert JWT not in str(caught.value) and caught.value.field is None
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.errors == caught.value.errors and str(again) == str(caught.value)


@pytest.mark.req("W12", "W13")
def test_a_category_can_be_asked_without_a_kind(app: Dutiful) -> None:
    rules = app.categories["ingestion"]
    assert app.validate(rules, {**GOOD, "anything": 1}) == []
    assert [error.field for error in app.validate(rules.plus(Rules(required=["mailbox"])), {**GOOD, "token": "x"})] == [
        "token",
        "mailbox",
    ]
    assert [error.field for error in app.validate(rules, {**GOOD, "odd": object()})] == ["payload"]


@pytest.mark.req("W13")
def test_a_kind_adds_to_the_rules_of_its_category(app: Dutiful) -> None:
    @app.job(category="ingestion", rules=Rules(required=["mailbox"], limit=300, forbid=["iban"]))
    async def parse() -> None: ...

    assert parse.category == "ingestion" and app.categories["ingestion"].limit is None
    assert fields(parse, {**GOOD, "external_message_id": "m"}) == ["mailbox", "external_message_id"]
    good = {name: value for name, value in GOOD.items() if name != "external_message_id"} | {"mailbox": "inbox"}
    assert parse.problems(good) == []
    assert fields(parse, {**good, "mailbox": "m" * 300}) == ["payload"]
    assert fields(parse, {**good, "customer_iban": "DE"}) == ["customer_iban"]


@pytest.mark.req("W10", "W64")
def test_the_size_is_limited_to_the_byte() -> None:
    kind = open_kind(Rules())
    rest = len('{"data":""}')
    assert kind.problems({"data": "x" * (10_240 - rest)}) == []
    (error,) = kind.problems({"data": "x" * (10_241 - rest)})
    assert error.field == "payload" and "10,241 bytes" in error.problem and "10,240" in error.problem
    assert open_kind(Rules(limit=20)).problems({"data": "é" * 4}) == []
    assert fields(open_kind(Rules(limit=20)), {"data": "é" * 5}) == ["payload"]


@pytest.mark.req("W8", "W64")
def test_a_sensitive_name_or_value_is_found_at_any_depth() -> None:
    kind = open_kind(Rules())
    payload = {"data": [{"a": {"b": [{"clientSecret": "x"}]}}, {"note": f"use {JWT}"}, [[{"Set-Cookie": "1"}]]]}
    assert fields(kind, payload) == ["data[0].a.b[0].clientSecret", "data[1].note", "data[2][0][0].Set-Cookie"]


@pytest.mark.req("W8")
def test_a_secret_is_not_repeated_even_if_it_is_a_name() -> None:
    (error,) = open_kind(Rules()).problems({"data": {JWT: 1}})
    assert error.field == f"data.{REDACTED}" and JWT not in str(error)


@pytest.mark.req("W8", "W64")
def test_no_error_repeats_a_secret_name_or_a_value() -> None:
    app = Dutiful()

    @app.job(rules=Rules(required={"mode": Literal["a", "b"]}))
    async def ruled(colour: Literal["red"] = "red") -> None: ...

    @app.job
    async def plain(colour: Literal["red"] = "red") -> None: ...

    named = app.validate("ruled", {"mode": "a", JWT: 1}) + app.validate("plain", {JWT: 1})
    named += app.validate("plain", {"x": None, "y": {JWT: float("nan")}})
    valued = app.validate("ruled", {"mode": "hunter2", "colour": "hunter2"})
    valued += app.validate("plain", {"colour": "hunter2"})
    assert [error.field for error in valued] == ["mode", "colour", "colour"]
    assert named and not any(JWT in str(error) or "hunter2" in str(error) for error in named + valued)
    long = app.validate("ruled", {"x" * 5_000: 1})
    assert len(long) == 2 and max(len(str(error)) for error in long) < 300


@pytest.mark.req("W8")
def test_what_cannot_be_a_secret_is_not_refused_for_its_name() -> None:
    kind = open_kind(Rules())
    assert (
        kind.problems({"data": {"tokens": 150, "cookie": True, "secret": 1.5, "pass": True, "pwd": "/srv/git"}}) == []
    )
    assert fields(kind, {"data": {"otp": 123456, "pwd": "hunter2", "token": ["x"]}}) == [
        "data.otp", "data.pwd", "data.token",
    ]  # fmt: skip


@pytest.mark.req("W8")
def test_a_secret_in_a_pair_of_name_and_value_is_found() -> None:
    pairs = [
        {"name": "password", "value": "hunter2"},
        {"key": "API_KEY", "value": "x"},
        {"name": "colour", "value": "red"},
    ]
    assert fields(open_kind(Rules()), {"data": pairs}) == ["data[0].value", "data[1].value"]


@pytest.mark.req("W8", "W10")
def test_what_is_within_a_limit_is_looked_through_and_what_is_above_is_not() -> None:
    kind = open_kind(Rules(limit=2_000_000))
    payload = {"data": [{"note": "x" * 1_100_000, "password": "hunter2"}]}
    assert fields(kind, payload) == ["data[0].password"]
    assert fields(open_kind(Rules()), payload) == ["payload"]


def test_the_places_of_a_payload_are_not_all_spelt() -> None:
    deep: Any = [1] * 20_000 + ["Bearer x1y2z3a4b5"] * 200
    for _ in range(400):
        deep = {"k" * 60: deep}
    tracemalloc.start()
    errors = open_kind(Rules(limit=1_000_000)).problems({"data": deep})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000, "with every path spelt, it would be hundreds of megabytes"
    assert errors and sum(len(error.field) for error in errors) < 200_000


@pytest.mark.req("W8")
def test_names_can_be_forbidden_and_allowed() -> None:
    kind = open_kind(Rules(forbid=["social_security_number"], allow=["deviceToken"]))
    assert fields(kind, {"data": {"userSocialSecurityNumber": 1}}) == ["data.userSocialSecurityNumber"]
    assert kind.problems({"data": {"device_token": JWT, "number": 1}}) == []
    assert fields(kind, {"data": {"device_token": {"password": "x"}}}) == ["data.device_token.password"]


@pytest.mark.req("W8")
def test_an_id_of_digits_is_not_taken_for_a_card() -> None:
    kind = open_kind(Rules())
    assert kind.problems({"data": {"order_id": 4111111111111111, "message_ids": ["4111111111111111"]}}) == []
    assert kind.problems({"data": {"n": [10**500, "\u00b2" * 16, -4111111111111111]}}) == []
    assert kind.problems({"data": {"order": "4111111111111111", "phone": "+4111111111111111"}}) == []
    cards = {"card": 4111111111111111, "cc_number": "4111111111111111", "note": "4111-1111-1111-1111", "pan": -4.0}
    assert fields(kind, {"data": cards}) == ["data.card", "data.cc_number", "data.note"]


@pytest.mark.req("W8")
@given(payload=JSON, path=st.lists(st.integers(0, 1) | TEXT, max_size=6), named=st.booleans())
def test_a_planted_secret_is_always_found(payload: Any, path: list[int | str], named: bool) -> None:
    assume(not isinstance(payload, bool))  # which is no password, but says whether there is one
    planted: Any = {"password": payload} if named else f"see {JWT}"
    for step in path:
        planted = [payload, planted] if isinstance(step, int) else {"x": payload, f"x{step}": planted}
    errors = ROOMY.problems({"data": planted})
    # By its own name or shape, or by the name of something that it is in.
    assert any(error.problem.startswith(("means ", "has a JWT", "has a token")) for error in errors)
    assert not any(JWT in str(error) for error in errors)


@given(payload=st.dictionaries(st.sampled_from([*GOOD, "payload_version"]) | st.text(), JSON | st.text(), max_size=4))
def test_any_payload_gets_an_answer(payload: dict[str, Any]) -> None:
    assert all(isinstance(error, FieldError) for error in STRICT.problems(payload))


def test_deep_nesting_exhausts_nothing() -> None:
    deep: Any = JWT
    for _ in range(150):
        deep = [deep]
    (error,) = open_kind(Rules()).problems({"data": deep})
    assert error.problem.startswith("has a JWT in it")
    for _ in range(500):
        deep = [deep]
    assert open_kind(Rules()).problems({"data": deep})


@pytest.mark.parametrize("payload", [[1], "x", None, 7])
def test_what_is_no_object_is_a_problem_and_no_crash(payload: Any) -> None:
    for asked in (Rules(), open_kind(Rules())):
        (error,) = Dutiful().validate(asked, payload)
        assert error.field == "payload" and "object" in error.problem


@pytest.mark.req("W9")
def test_a_reference_keeps_the_type_that_is_required() -> None:
    kind = open_kind(Rules(required={"a": int, "b": str}, references=["a", "b"]))
    assert fields(kind, {"a": "7", "b": "x" * 201}) == ["a", "b"]
    assert kind.problems({"a": 7, "b": "x"}) == []


@pytest.mark.req("W11", "W64")
def test_an_upgrade_that_fails_is_a_problem_of_the_payload() -> None:
    app = Dutiful()

    @app.job(rules=Rules(versions=["1", "2"]))
    async def bill(n: int) -> None: ...

    @bill.upgrade("1")
    def renamed(old: dict[str, Any]) -> dict[str, Any]:
        return {"n": old["hunter2"]}

    (error,) = app.validate("bill", {"payload_version": "1"})
    assert error.field == "payload_version" and "KeyError" in error.problem and "hunter2" not in error.problem
    with pytest.raises(PayloadInvalid, match="the upgrade of that failed"):
        bill.accept('{"payload_version": "1"}', None)


@pytest.mark.req("W11")
def test_an_unknown_version_is_refused_and_the_known_are_named() -> None:
    kind = open_kind(Rules(versions=["1.0", "2.0"]))
    assert kind.problems({"payload_version": "1.0"}) == kind.problems({"payload_version": "2.0"}) == []
    for wrong in ("3.0", 2.0, None, ["1.0"], JWT):
        errors = kind.problems({"payload_version": wrong})
        assert errors[0].field == "payload_version" and '"1.0", "2.0"' in errors[0].problem and JWT not in str(errors)


@pytest.mark.req("W11")
def test_a_payload_without_a_version_is_stamped_with_the_default() -> None:
    assert open_kind(Rules(versions=["1.0", "2.0"])).check({}).text == '{"payload_version":"2.0"}'
    older = Rules(versions=["1", "2"], default_version="1", version_field="v")
    assert open_kind(older).check({"data": 1}).text == '{"data":1,"v":"1"}'


@pytest.mark.req("W11")
def test_older_payloads_are_upgraded_step_by_step() -> None:
    app = Dutiful()

    @app.job(rules=Rules(references={"account_id": int}, versions=["1", "2", "3"], default_version="1"))
    async def bill(account_id: int, currency: str) -> None: ...

    @bill.upgrade("1")
    def named(old: dict[str, Any]) -> dict[str, Any]:
        return {"account_id": old["account"]}

    @bill.upgrade("2")
    def with_currency(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "currency": "EUR", "payload_version": "3"}

    for stored in ('{"account":7}', '{"account_id":7,"payload_version":"2"}'):
        accepted = bill.accept(stored, None)
        assert accepted.arguments == '{"account_id":7,"currency":"EUR"}'
        assert accepted.payload == '{"account_id":7,"payload_version":"3","currency":"EUR"}'
    current = '{"account_id":7,"payload_version":"3","currency":"CHF"}'
    assert bill.accept(current, None) == ('{"account_id":7,"currency":"CHF"}', current)
    # The stored payload stays as it was given.
    assert bill.check({"account": 7}).text == '{"account":7,"payload_version":"1"}'
    for version in ("3", "0"):
        with pytest.raises(UsageError, match="no older version"):
            bill.upgrade(version)(named)
    with pytest.raises(UsageError, match="already"):
        bill.upgrade("1")(named)


def test_the_payload_says_whose_job_it_is_and_under_which_key(fetch: Kind[..., None]) -> None:
    key = str(GOOD["idempotency_key"])
    unique = Unique(key, Scope.FOREVER, OnConflict.REJECT, across_kinds=True)
    for options in ({}, {"tenant": "123", "unique": unique}):
        job = fetch.prepare(read_options(Options(), options), GOOD)
        assert (job.tenant, job.correlation_id, job.unique) == ("123", GOOD["correlation_id"], unique)
    # The right key held otherwise would let a second job in.
    for option in ({"tenant": "456"}, {"correlation_id": "other"}, {"unique": "other"}, {"unique": key}):
        with pytest.raises(PayloadInvalid, match="is not what the payload says"):
            fetch.prepare(read_options(Options(), option), GOOD)


@pytest.mark.req("W17")
def test_another_tenants_payload_is_not_run(fetch: Kind[..., None]) -> None:
    text = fetch.check(GOOD).text
    assert fetch.accept(text, "123").arguments == '{"connection_id":456,"external_message_id":"msg_789"}'
    for tenant in (None, "456"):
        with pytest.raises(PayloadInvalid, match="another tenant"):
            fetch.accept(text, tenant)


@pytest.mark.req("W1")
def test_a_category_is_declared_once_and_before_its_kinds(app: Dutiful) -> None:
    with pytest.raises(UsageError, match="already"):
        app.category("ingestion")
    with pytest.raises(UsageError, match="no category 'sync', but: ingestion"):
        app.job(category="sync")
    app.category("sync", Rules(references=["calendar_id"]))
    pull = app.pipeline("pull", category="sync")

    @pull.phase
    def read(calendar_id: int) -> None: ...

    assert pull.category == "sync" and fields(pull, {}) == ["calendar_id"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"required": "tenant_id"}, "list of names"), ({"required": {"n": object()}}, "type of 'n'"),
     ({"versions": {"1", "2"}}, "the current one last"), ({"versions": ["1", "1"]}, "different"),
     ({"tenant": ""}, "tenant ''"), ({"unique": 5}, "unique 5"), ({"version_field": 3}, "version_field 3"),
     ({"limit": 0}, "limit"), ({"forbid": [3]}, "not a name"),
     ({"versions": ["1"], "default_version": "2"}, "default_version")],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Rules(**wrong)
    with pytest.raises(UsageError, match="must be Rules"):
        Dutiful().job(rules=wrong)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="window"):
        Dutiful().category("a", Rules(unique=Unique("key", Scope.WINDOW)))


@pytest.mark.req("W8", "W64")
@pytest.mark.parametrize("name", secret_cases.CATCH)
def test_a_secret_is_found_in_its_field(name: str) -> None:
    payload, field, _ = secret_cases.CATCH[name]
    found = Dutiful().validate(Rules(), payload)
    assert [error.field for error in found] == [field]
    assert "hunter2" not in str(found) and secret_cases.GITHUB not in str(found)
    (wrapped,) = Dutiful().validate(Rules(), {"x": [payload]})
    assert wrapped.field == f"x[0].{field}"


@pytest.mark.req("W8")
@pytest.mark.parametrize("name", secret_cases.PASS)
def test_what_only_looks_like_a_secret_passes(name: str) -> None:
    assert Dutiful().validate(Rules(), secret_cases.PASS[name]) == []
    assert Dutiful().validate(Rules(), {"x": [secret_cases.PASS[name]]}) == []


def test_names_that_are_allowed_are_allowed_in_pairs_and_options_too() -> None:
    rules = Rules(allow=["deploy_token", "--deploy-token", "has_password"])
    payload = {
        "env": [{"name": "deploy_token", "value": "x"}],
        "argv": ["--deploy-token", "abc"],
        "has_password": "what",
    }
    assert Dutiful().validate(rules, payload) == []
    found = Dutiful().validate(Rules(), payload)
    assert [error.field for error in found] == ["env[0].value", "argv[1]", "has_password"]


def test_names_that_are_forbidden_are_forbidden_in_pairs_too() -> None:
    rules = Rules(forbid=["iban"])
    payload = {"f": [{"name": "customer_iban", "value": "DE"}], "argv": ["--iban", "DE"]}
    assert [error.field for error in Dutiful().validate(rules, payload)] == ["f[0].value", "argv[1]"]


@pytest.mark.req("W8", "W64")
@pytest.mark.parametrize("name", secret_cases.CATCH)
def test_a_secret_in_a_subject_is_refused(fetch: Kind[..., None], name: str) -> None:
    subject, field, _ = secret_cases.CATCH[name]
    with pytest.raises(PayloadInvalid) as caught:
        fetch.options(subject=subject)._prepare((), dict(GOOD))
    assert [error.field for error in caught.value.errors] == [f"subject.{field}"]
    assert "hunter2" not in str(caught.value)
    text = fetch.check(GOOD).text
    with pytest.raises(PayloadInvalid, match="subject"):
        fetch.accept(text, "123", msgspec.json.encode(subject).decode())


@pytest.mark.parametrize("name", secret_cases.PASS)
def test_a_subject_that_only_looks_like_one_with_a_secret_passes(fetch: Kind[..., None], name: str) -> None:
    subject = secret_cases.PASS[name]
    job = fetch.options(subject=subject)._prepare((), dict(GOOD))
    assert job.subject is not None and msgspec.json.decode(job.subject) == subject
    fetch.accept(job.payload, "123", job.subject)


def test_a_subject_and_a_payload_are_reported_together(fetch: Kind[..., None]) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        fetch.options(subject={"id": UUID(int=7), "token": "x"})._prepare((), {**GOOD, "password": "x"})
    assert [error.field for error in caught.value.errors] == ["password", "subject.token"]


def test_the_subject_of_a_kind_without_rules_is_its_own_affair() -> None:
    async def take() -> None: ...

    job = Dutiful().job(name="take")(take).options(subject={"token": "x"})._prepare((), {})
    assert job.subject == '{"token":"x"}'
