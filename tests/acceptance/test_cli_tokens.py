"""`token`: made once, listed without secrets, revoked; on both stores."""

from pathlib import Path

import pytest
from command_line import Project
from dead_letters import CommandLine

from dutiful.store.tokens import hash_of


@pytest.mark.req("W53")
def test_a_token_is_made_listed_and_revoked(
    tmp_path: Path, app_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = CommandLine(Project(tmp_path, app_url).write_jobs(), monkeypatch, capsys)
    cli.make_dead_letters(0)  # makes the database

    made = cli.run("tokens", "create", "--name", "ada", "--role", "manager", "--tenant", "acme", "--expires", "90d")
    for_all = cli.run("tokens", "create", "--name", "root", "--role", "admin", "--json").json

    secret = made.out.strip()
    stored = cli.ask(lambda store: store.tokens.find(hash_of(secret)))
    assert stored is not None
    assert (stored.name, stored.role, stored.tenant) == ("ada", "manager", "acme")
    assert stored.expires_at is not None
    assert (stored.expires_at - stored.created_at).days == 90
    assert "it cannot be shown again" in made.err
    assert for_all["secret"].startswith("dtf_")
    listed = cli.run("tokens", "list", "--json")
    assert [(token["name"], token["tenant"]) for token in listed.json["tokens"]] == [("root", None), ("ada", "acme")]
    assert secret not in listed.out
    assert "secret" not in listed.out
    assert cli.run("tokens", "revoke", for_all["id"], "--reason", "lost").code == 0
    assert cli.run("tokens", "revoke", for_all["id"]).code == 1
    assert "revoked" in cli.run("tokens", "list").out
    misspelt = cli.run("tokens", "revoke", f"x{secret}")
    assert misspelt.code == 2 and secret not in misspelt.out + misspelt.err
    by_secret = cli.run("tokens", "revoke", secret, "--reason", f"{secret} is out")
    assert by_secret.code == 0 and secret not in by_secret.out + by_secret.err
    assert secret not in str(cli.trail())
    for wrong in (["--role", "king"], ["--role", "viewer", "--expires", "soon"], []):
        assert cli.run("tokens", "create", "--name", "eve", *wrong).code == 2
    assert "token.revoke succeeded lost" in [f"{e.action} {e.outcome} {e.reason}" for e in cli.trail()]
