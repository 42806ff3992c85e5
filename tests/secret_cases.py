"""Payloads with a secret in them, and payloads that only look so: the same table for Python and for SQL."""

from typing import Any, NamedTuple


class Case(NamedTuple):
    payload: dict[str, Any]
    field: str  # where the secret is found
    sql: bool = True  # whether the database finds it by itself; the rest is found before the job runs


# Secrets are written in two parts, so that a search for secrets finds none in this file.
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
GITHUB = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"
AWS_LETTERS = "wJalrXUtnFEMIxK7MDENGx" + "bPxRfiCYEXAMPLEKEY"
TELEGRAM = "110201543:AA" + "HdqTcvCH1vGWJxfSeofSAs0K5PALDsawx"
VAULT = "hvs." + "CAESIJlU9JMYEhOPYv4igdhm9PnZDrabYTobQ4Ymnlq1qY-"
SIGNED = "https://bucket.s3.amazonaws.com/a.pdf?X-Amz-Expires=60&X-Amz-Signature=" + "9f86d081884c7d65" * 4
SIGNED_V2 = "https://bucket.s3.amazonaws.com/a?Expires=1&Signature=" + "vjbyPxybdZaNmGa%2ByT272YEAiv4%3D"
SIGNED_GOOGLE = "https://storage.googleapis.com/b/o?X-Goog-Signature=" + "8e3a" * 20
DISCORD = "https://discord.com/api/webhooks/1234567890123/" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ"
SAS = "https://x.blob.core.windows.net/c/b?sv=2022-11-02&sp=r&sig=" + "Z%2FRHIX5Xcg0Mq2rqI3OlWTjEg2tYkboXr1P9ZUXDtkk%3D"

CATCH: dict[str, Case] = {
    # by name
    "a password": Case({"password": "hunter2"}, "password"),
    "in camel case": Case({"userPassword": "hunter2"}, "userPassword"),
    "deep down": Case({"a": [{"b": {"clientSecret": "x"}}]}, "a[0].b.clientSecret"),
    "a header": Case({"headers": {"X-API-Key": "abc"}}, "headers.X-API-Key"),
    "a flag with a text": Case({"has_password": "hunter2"}, "has_password"),
    "a flag with a word": Case({"has_password": "correcthorse"}, "has_password"),
    "another flag with a text": Case({"data": {"isToken": "abc-def"}}, "data.isToken"),
    "a used token": Case({"used_token": "f3a9c1"}, "used_token"),
    "a number for a password": Case({"password": 123456}, "password"),
    "a form of it": Case({"api_key_prod": "abc"}, "api_key_prod"),
    "a plural": Case({"access_tokens": ["a", "b"]}, "access_tokens"),
    "a mail": Case({"email_body": "Dear Ada"}, "email_body"),
    "a document": Case({"document_content": "…"}, "document_content"),
    "the database's": Case({"db_pass": "hunter2"}, "db_pass"),
    "a text for a length": Case({"password_length": "hunter2"}, "password_length", sql=False),
    "a text for a count": Case({"maxTokenCount": "f3a9-c1"}, "maxTokenCount", sql=False),
    "a recovery code": Case({"otp": "123456"}, "otp"),
    # by name, with invisible characters
    "a zero width space": Case({"pass\u200bword": "hunter2"}, "pass\u200bword"),
    "a soft hyphen": Case({"pass\u00adword": "hunter2"}, "pass\u00adword"),
    "a grapheme joiner": Case({"to\u034fken": "abc"}, "to\u034fken"),
    "full width": Case({"\uff54\uff4f\uff4b\uff45\uff4e": "x"}, "\uff54\uff4f\uff4b\uff45\uff4e"),
    "a selector": Case({"se\ufe0fcret": "x"}, "se\ufe0fcret"),
    "a change of direction": Case({"api\u202e_key": "x"}, "api\u202e_key"),
    "many of them": Case({"password" + "\u200b" * 300: "x"}, "password" + "\u200b" * 72 + "…"),
    # a name and its value side by side
    "a pair": Case({"env": [{"name": "password", "value": "hunter2"}]}, "env[0].value"),
    "the payload itself": Case({"name": "password", "value": "hunter2"}, "value"),
    "a pair in capitals": Case({"tags": [{"Key": "API_KEY", "Value": "abc"}]}, "tags[0].Value"),
    "a header's pair": Case({"headers": [{"header": "Authorization", "value": "abc"}]}, "headers[0].value"),
    "a pair with a number": Case({"env": [{"name": "DB_PASSWORD", "value": 123456}]}, "env[0].value"),
    "a pair with a list": Case({"env": [{"key": "token", "values": ["abc"]}]}, "env[0].values"),
    "a pair of texts": Case({"pair": ["password", "hunter2"]}, "pair[1]", sql=False),
    "a pair with one letter": Case({"pair": ["password", "h"]}, "pair[1]", sql=False),
    "pairs of texts": Case({"env": [["user", "ada"], ["password", "correcthorse"]]}, "env[1][1]", sql=False),
    "a pair with a text": Case({"form": [{"field": "password", "text": "hunter2"}]}, "form[0].text", sql=False),
    "short names": Case({"e": [{"k": "password", "v": "hunter2"}]}, "e[0].v"),
    "options": Case({"argv": ["mysql", "--password", "hunter2"]}, "argv[2]"),
    "an option in one piece": Case({"argv": ["mysql", "--password=hunter2"]}, "argv[1]", sql=False),
    "an option with one letter": Case({"argv": ["mysql", "--password=h"]}, "argv[1]", sql=False),
    "an option in a command": Case({"command": "mysql --password=h shop"}, "command", sql=False),
    "an option of one dash": Case({"argv": ["tool", "-token", "hunter2"]}, "argv[2]"),
    "a login": Case({"argv": ["curl", "-u", "bob:hunter2", "https://example.org"]}, "argv[2]"),
    "options in a text": Case({"error": "Command '['mysql', '--password', 'hunter2']' failed"}, "error", sql=False),
    "a pair in a text": Case({"text": '[{"name": "password", "value": "hunter2"}]'}, "text", sql=False),
    # by shape
    "a JWT": Case({"note": f"use {JWT}"}, "note"),
    "a GitHub token": Case({"note": GITHUB}, "note"),
    "a GitHub token with a hidden joint": Case({"note": GITHUB.replace("_", "\u200d_")}, "note"),
    "a GitHub token in full width": Case({"note": GITHUB.replace("g", "\uff47")}, "note"),
    "an escaped joint": Case({"note": repr(GITHUB.replace("_", "\u200b_"))}, "note", sql=False),
    "an AWS key": Case({"note": "AKIA" + "IOSFODNN7EXAMPLE"}, "note"),
    "an AWS secret key": Case({"note": f"the secret is {AWS_SECRET}"}, "note"),
    "an AWS secret key and its word": Case({"note": f"{AWS_SECRET} (aws)"}, "note", sql=False),
    "an AWS secret key in a text": Case({"note": f"aws: {AWS_LETTERS}"}, "note"),
    "a Vault token": Case({"note": VAULT}, "note"),
    "an older Vault token": Case({"note": "s." + "iyNUhq8Ov4hIAx6snw5mB2nL"}, "note"),
    "a Telegram token": Case({"note": f"https://api.telegram.org/bot{TELEGRAM}/getMe"}, "note"),
    "a signed URL": Case({"url": SIGNED}, "url"),
    "an older signed URL": Case({"url": SIGNED_V2}, "url"),
    "a URL signed by Google": Case({"url": SIGNED_GOOGLE}, "url"),
    "a short signature of Google": Case(
        {"url": "https://storage.googleapis.com/b/o?X-Goog-Signature=" + "8e3a91"}, "url"
    ),
    "a short SAS": Case(
        {"url": "https://x.blob.core.windows.net/c/b?sv=2022-11-02&sig=" + "Zx5Xcg0M%3D"}, "url", sql=False
    ),
    "a short SAS, the other way": Case({"query": "sig=" + "Zx5Xcg0M%3D&sp=r&sv=2022-11-02"}, "query", sql=False),
    "a Discord webhook": Case({"url": DISCORD}, "url"),
    "an older Discord webhook": Case({"url": DISCORD.replace("discord.com/api", "discordapp.com/api/v10")}, "url"),
    "a token for a user": Case({"url": "https://" + "a1b2c3d4e5@git.example.org/x.git"}, "url", sql=False),
    "a SAS URL": Case({"url": SAS}, "url"),
    "a SAS token alone": Case({"query": SAS.partition("?")[2]}, "query"),
    "a private key": Case({"n": "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"}, "n"),
    "a Slack token": Case({"note": "xoxb-" + "123456789012-abcdefGHIJKL"}, "note"),
    "a Stripe key": Case({"note": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"}, "note"),
    "an OpenAI key": Case({"note": "sk-" + "proj-abcDEF123456ghiJKL789mnoPQR"}, "note", sql=False),
    "a bearer token": Case({"note": "Bearer " + "mF_9.B5f-4.1JqM"}, "note"),
    "a URL with a password": Case({"url": "postgres://app:" + "hunter2@db.internal/app"}, "url"),
    "a URL without a scheme's end": Case({"args": ["redis://:" + "hunter2@cache:6379/0"]}, "args[0]"),
    "a Grafana token": Case({"note": "glsa_" + "HOruNAb7SOiCdshU9algkrq7FDsNSLAa_55e2f8be"}, "note"),
    "an Atlassian token": Case({"note": "ATATT3" + "xFfGF0" * 10}, "note"),
    "a Databricks token": Case({"note": "dapi" + "0123456789abcdef" * 2}, "note"),
    "an assignment": Case({"note": "host=db password=hunter2"}, "note", sql=False),
    "a card": Case({"note": "4111 1111 " + "1111 1111"}, "note", sql=False),
    "a secret for a name": Case({"data": {GITHUB: 1}}, "data.[redacted]"),
}

PASS: dict[str, dict[str, Any]] = {
    "a flag": {"has_password": True, "hasPassword": False, "is_token": None},
    "a flag in words": {"has_password": "yes", "needs_token": "no", "is_secret": "true", "with_cookie": "optional"},
    "a flag as a number": {"has_password": 1, "has_token": "0"},
    "counts": {"token_count": 3, "max_tokens": 4096, "total_tokens": "4,096", "min_password": "8 characters"},
    "times": {"password_reset_at": "2030-01-01T00:00:00Z", "token_expires_at": 1893456000, "password_changed_at": None},
    "ids": {"token_id": "tok_123", "secret_id": "s-1", "access_key_id": "k-1", "key": "orders/7", "api_key_id": 7},
    "kinds of tokens": {"token_type": "refresh", "content_type": "text/html", "password_policy": "strong"},
    "pages": {"page_token": "CAUQAA", "next_page_token": "x", "syncToken": "y", "continuation_token": "z"},
    "other words": {"secretary_id": 7, "passenger": "Ada", "tokenizer": "bpe", "keyboard": "de", "author": "Ada"},
    "a UUID": {"ref": "550e8400-e29b-41d4-a716-446655440000"},
    "a SHA-1": {"commit": "3f786850e387550fdab836ed7e6dc881de23001b"},
    "a SHA-1 near a secret": {"note": "the secret of commit 3f786850e387550fdab836ed7e6dc881de23001b"},
    "a SHA-256": {"digest": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    "a digest in Base64": {"digest": "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
    "thirty bytes in Base64": {"nonce": "q8Zt+3vLx1R/Yw5KpN7bHc2JdFsGmQ0aUeTi4oPz", "cursor": AWS_SECRET},
    "a small image": {"icon": "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACH5BAEAAAAALAAAAAABAAEAAAICRAEAOw=="},
    "an id of a drive": {"file": "1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgVE2upms"},
    "an id of a mail": {"mail": "AAMkAGI2TG93AAAAAAAAAAAAAAAAAAAAAAAAAAAA="},
    "forty letters and digits": {"id": "a8Kd03jfLq9aPw7Zx1Cv5Bn2Mm4Qs6Wd8Er0Ty3U"},
    "a path of forty characters": {"path": "customers/2030/Invoices/Archive/Page0012"},
    "a longer path": {"path": "/srv/data/Customers/2030/Invoices/A1/B2/C3/D4/E5/F6"},
    "a ULID": {"id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
    "a public key": {"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"},
    "a pair of a colour": {"pairs": [{"name": "colour", "value": "red"}, {"key": "size", "value": 7}]},
    "a pair that describes": {"fields": [{"name": "password", "type": "string", "required": True}]},
    "a pair with a flag": {"fields": [{"name": "password", "value": True}, {"name": "token", "value": None}]},
    "a pair with nothing": {"fields": [{"name": "password", "value": ""}]},
    "a name and a description": {"name": "password", "label": "Your password"},
    "options": {"argv": ["curl", "--retry", "3", "--max-tokens", "10", "--password-file", "/run/secret"]},
    "options without a value": {"argv": ["tool", "--password", "--user", "ada", "-u", "1000:1000"]},
    "an option's placeholder": {"argv": ["tool", "--password", "$PASSWORD", "--token", "***"]},
    "lengths": {"password_length": 12, "passwordLength": "12", "token_size": "4 KB", "secret_count": "unknown"},
    "two names of fields": {"columns": ["password", "email"], "required": ["token", "id"]},
    "types of fields": {"schema": [["password", "string"], ["token", "required"], ["secret", "str"]]},
    "pairs of others": {"env": [["user", "ada1"], ["colour", "red"]]},
    "a label": {"form": [{"field": "password", "text": "Your password"}, {"field": "token", "text": "Token"}]},
    "an option's variable": {"argv": ["mysql", "--password=$PASSWORD", "--token=***", "--max-tokens=9"]},
    "names of fields": {"columns": ["password", "email", "token"]},
    "a URL": {"url": "https://example.org:8080/a?page=2&sort=sig&key=7"},
    "a URL with a user": {"url": "ssh://git@example.org/x.git"},
    "a URL with a login": {"url": "https://ada2030@bitbucket.org/team/x.git", "other": "https://ada@example.org/"},
    "Discord": {"url": "https://discord.com/api/webhooks/1234567890123", "other": "https://discord.com/channels/1/2"},
    "no signature": {"url": "https://storage.googleapis.com/b/o?X-Goog-Signature=missing&X-Amz-Signature=none"},
    "a short sig": {"url": "https://example.org/?sig=ok"},
    "a signature's name": {"note": "Signature=missing, sig=none"},
    "versions": {"note": "s.version hvs.example 12:AA"},
    "an instant": {"note": "at 12345678:AAA and 10:30:15"},
    "words": {"note": "The bearer of basic information asked for an unexpected token: comma"},
    "Persian": {"note": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"},
    "emoji": {"note": "\u2764\ufe0f \U0001f469\u200d\U0001f4bb"},
    "a telephone number": {"phone": "+4111111111111111"},
    "a long number": {"order_id": 4111111111111111},
    "an idempotency key": {"idempotency_key": "email_fetch_conn_456_msg_789"},
    "an ARN": {"arn": "arn:aws:s3:::my-bucket/Images2030/FolderA/x"},
    "a region": {"note": "aws eu-central-1 instance i-0123456789abcdef0"},
    "a chat's id": {"chat": "-1001234567890:17"},
    "a model": {"model": "sk-learn-models-of-the-year-2026-final"},
}  # fmt: skip
