"""Redaction takes time linear in the length of a text, whatever is in it."""

import signal

import pytest

from dutiful.core.redaction.redact import redact

# What a text is made of that leads each pattern as far as it goes, to fail there, again and again.
SLOW = [
    "eyJ", "eyJ.", "eyJ.a.", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "AKIA", "ghp_", "github_pat_", "glpat-",
    "xoxb-", "SG.", "SG.-", "sk-", "pypi-", "bearer ", "basic ", "://a:", "://a:b/", "://:a@", "://", "-u a:", "4111 ",
    "1-", "pwd=", "pwd=(", "pwd=f(", "pwd=)", 'password="', "password='\\", "token:\n ", "cookie:", "key= \\",
    'cookie:="', "cookie:='\"", "api_key ", "--password ", "<token>", "<token a", "('token', '", "key (token)=(",
    "key (", "pass:|", "\\", '"', "a", "_-", " ", "hvs.", "s.", "1:AA", "12345678:AA", "sig=", "'--token', '",
    "'--token','a", 'key": "token", "value": "', "Ab1/", "Ab1/ ", "\\u200b", "\\\\\\\\x", "\u0301\u0327", "\uff50",
    "\u200b", "aws Ab1+",
]  # fmt: skip


def test_a_text_made_to_be_slow_is_not() -> None:
    signal.signal(signal.SIGPROF, lambda *_: pytest.fail("it looks at the same characters again and again"))
    try:
        for part in SLOW:
            # Of processor time, whatever else the machine does: it takes a tenth of a second, and a pattern that tries
            # again from each place at least ten, even if the part is long.
            signal.setitimer(signal.ITIMER_PROF, 4)
            redact(part * (300_000 // len(part)) + "(")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
