"""`token`: made once, listed without secrets, revoked; on both stores."""

from pathlib import Path

import pytest
from command_line import Project
from dead_letters import Office

from dutiful.access import hash_of


@pytest.mark.req("W53")
def test_a_token_is_made_listed_and_revoked(
    tmp_path: Path, app_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    office = Office(Project(tmp_path, app_url).write_jobs(), monkeypatch, capsys)
    office.bury(0)  # makes the database

    made = office.run("token", "create", "--name", "ada", "--role", "manager", "--tenant", "acme", "--expires", "90d")
    for_all = office.run("token", "create", "--name", "root", "--role", "admin", "--json").json

    secret = made.out.strip()
    stored = office.ask(lambda store: store.token_of(hash_of(secret)))
    assert stored is not None
    assert (stored.name, stored.role, stored.tenant) == ("ada", "manager", "acme")
    assert stored.expires_at is not None
    assert (stored.expires_at - stored.created_at).days == 90
    assert "nobody can show it again" in made.err
    assert for_all["secret"].startswith("dtf_")
    listed = office.run("token", "list", "--json")
    assert [(token["name"], token["tenant"]) for token in listed.json["tokens"]] == [("root", None), ("ada", "acme")]
    assert secret not in listed.out
    assert "secret" not in listed.out
    assert office.run("token", "revoke", for_all["id"], "--reason", "lost").code == 0
    assert office.run("token", "revoke", for_all["id"]).code == 1
    assert "revoked" in office.run("token", "list").out
    misspelt = office.run("token", "revoke", f"x{secret}")
    assert misspelt.code == 2 and secret not in misspelt.out + misspelt.err
    by_secret = office.run("token", "revoke", secret, "--reason", f"{secret} is out")
    assert by_secret.code == 0 and secret not in by_secret.out + by_secret.err
    assert secret not in str(office.trail())
    for wrong in (["--role", "king"], ["--role", "viewer", "--expires", "soon"], []):
        assert office.run("token", "create", "--name", "eve", *wrong).code == 2
    assert "token.revoke succeeded lost" in [f"{e.action} {e.outcome} {e.reason}" for e in office.trail()]
