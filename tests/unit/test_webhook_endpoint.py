"""Where webhooks may go: what is refused when a URL is given, and why."""

from ipaddress import ip_address, ip_network

import pytest

from dutiful import Dutiful, UsageError
from dutiful.core.webhooks.endpoint import check_url, origin, read_network, refusal, remedy

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

FORBIDDEN = [
    "127.0.0.1",
    "127.255.1.2",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "192.0.0.8",
    "192.0.0.9",
    "192.0.2.1",
    "192.88.99.1",
    "168.63.129.16",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::8.8.8.8",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "100::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "100.63.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "2606:4700:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    assert refusal(ip_address(address), ()) is not None
    with pytest.raises(UsageError, match="webhook_networks"):
        check_url(f"https://{host}/hook", ())


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.0.1", "a loopback"),
        ("169.254.169.254", "a link-local (cloud metadata)"),
        ("224.0.0.1", "a multicast"),
        ("0.0.0.0", "an unspecified"),
        ("240.0.0.1", "a reserved"),
        ("10.0.0.1", "a private"),
        ("192.88.99.1", "a reserved"),
        ("64:ff9b::7f00:1", "a loopback"),
    ],
)
def test_the_reason_names_what_the_address_is(address: str, what: str) -> None:
    assert refusal(ip_address(address), ()) == f"{address} is {what} address"


def test_the_remedy_names_the_network_of_this_address_alone() -> None:
    assert '"10.0.0.1/32"' in remedy(ip_address("10.0.0.1"))
    with pytest.raises(UsageError, match=r'localhost is this machine; .*"127\.0\.0\.1/32"'):
        check_url("http://localhost/", ())


def test_a_network_is_read_as_it_is_written_or_refused() -> None:
    assert read_network("10.1.0.0/16") == ip_network("10.1.0.0/16")
    with pytest.raises(UsageError, match="webhook_networks"):
        read_network("10.1.2.3/16")


def test_one_allowed_address_inside_another_allows_no_neighbour() -> None:
    """A translator's address leads to the IPv4 address in its last bits, all of them."""
    only = [ip_network("10.0.0.1/32")]
    assert refusal(ip_address("64:ff9b::10.0.0.1"), only) is None
    assert refusal(ip_address("64:ff9b::10.0.0.0"), only) is not None


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert refusal(ip_address(address), ()) is None


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f000001", "0X7F.1", "017700000001", "0177.0.0.1", "127.1", "127.0.1", "127.0.0.1.", "0", "0x"],
)
def test_an_address_in_disguise_is_seen_through(host: str) -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1 is a loopback|0\.0\.0\.0 is an unspecified"):
        check_url(f"http://{host}/", ())


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "localhost.", "api.localhost"])
def test_this_machine_is_refused_by_name_too(name: str) -> None:
    with pytest.raises(UsageError, match=r"this machine; .*webhook_networks"):
        check_url(f"http://{name}:8000/", ())
    assert check_url(f"http://{name}:8000/", [ip_network("127.0.0.0/8")]).startswith("http://")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "must be a URL"),
        (None, "must be a URL"),
        ("https://example.com/" + "x" * 2_000, "at most 2,000"),
        ("ftp://example.com/", "must begin with https"),
        ("file:///etc/passwd", "must begin with https"),
        ("example.com/hook", "must begin with https"),
        ("https:///hook", "must begin with https"),
        ("https://example.com:0/", "port 0"),
        ("https://example.com:99999/", "not a URL"),
        ("https://[::1", "not a URL"),
        ("https://[fe80::1%25eth0]/", "links|not a URL"),
        ("https://example.com/#top", "fragment"),
        ("https://example.com/#", "fragment"),
        ("https://exa mple.com/", "characters"),
        ("https://example.com\\@127.0.0.1/", "characters"),
        ("https://example.com/\r\nhost: x", "characters"),
        ("https://１２７.0.0.1/", "characters"),
        ("https://127。0.0.1/", "characters"),
        ("https://127%2e0.0.1/", "neither a host's name nor an address|no host's name"),
        ("https://256.1.1.1/", "too large"),
        ("https://8.256.8.8/", "too large"),
        ("https://8.8.8.256/", "too large"),
        ("https://8.8.65536/", "too large"),
        ("https://8.16777216/", "too large"),
        ("https://4294967296/", "too large"),
        ("https://[8::8::8]/", "not a URL|no address"),
        ("https://" + ".".join(["a" * 49] * 5) + ".abcd/", "no host's name"),
        ("https://" + "a" * 64 + ".example/", "no host's name"),
        ("https://1.2.3.4.5/", "neither"),
        ("https://08.1.1.1/", "malformed"),
        ("https://-a.example/", "no host's name"),
        ("https://a..example/", "no host's name"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_the_reason(url: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        check_url(url, ())


@pytest.mark.parametrize("login", ["ada:hunter2", ":hunter2", "hunter2"])
def test_credentials_in_a_url_are_refused_and_not_repeated(login: str) -> None:
    with pytest.raises(UsageError, match="credentials") as refused:
        check_url(f"https://{login}@example.com/", ())
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("HTTPS://Example.COM", "https://example.com/"),
        ("https://example.com:443/a?b=c", "https://example.com/a?b=c"),
        ("http://example.com.:8080?x=1", "http://example.com:8080/?x=1"),
        ("https://[2606:4700:4700:0::1111]/", "https://[2606:4700:4700::1111]/"),
        ("http://example.com:80/", "http://example.com/"),
        ("http://example.com:443/", "http://example.com:443/"),
        ("https://134744072/", "https://8.8.8.8/"),
        ("https://8.8.2056/", "https://8.8.8.8/"),
        ("https://8.526344/", "https://8.8.8.8/"),
        ("https://010.0x8.8.8/", "https://8.8.8.8/"),
        ("https://223.255.255.255/", "https://223.255.255.255/"),
        ("https://" + ".".join(["a" * 49] * 5) + ".abc", "https://" + ".".join(["a" * 49] * 5) + ".abc/"),
        ("https://" + "a" * 63 + ".example", "https://" + "a" * 63 + ".example/"),
        ("https://example.com/" + "x" * 1_980, "https://example.com/" + "x" * 1_980),
        ("https://xn--bcher-kva.example/%C3%A4", "https://xn--bcher-kva.example/%C3%A4"),
    ],
)
def test_a_url_has_one_spelling(given: str, kept: str) -> None:
    assert check_url(given, ()) == kept
    assert kept.startswith(origin(kept)) and origin(kept).count("/") == 3


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("https://shop.example/hook?x=1", "https://shop.example/"),
        ("https://shop.example:8443?x=1", "https://shop.example:8443?"),
        ("https://shop.example#x", "https://shop.example#"),
        ("https://shop.example", "https://shop.example/"),
        ("shop.example", "shop.example/"),
        ("", "/"),
    ],
)
def test_the_origin_is_what_precedes_the_path(url: str, prefix: str) -> None:
    assert origin(url) == prefix


def test_private_networks_can_be_allowed() -> None:
    networks = [ip_network("10.1.0.0/16"), ip_network("fd00::/8")]
    assert check_url("http://10.1.2.3/", networks) == "http://10.1.2.3/"
    assert check_url("http://[::ffff:10.1.2.3]/", networks) and check_url("http://[fd12::1]/", networks)
    with pytest.raises(UsageError, match="private"):
        check_url("http://10.2.0.1/", networks)


async def test_a_job_cannot_be_enqueued_with_a_webhook_that_leads_inside() -> None:
    app = Dutiful("sqlite:///never.db", webhook_secrets=SECRET)

    @app.job
    async def work() -> None: ...

    with pytest.raises(UsageError, match="link-local"):
        await work.options(webhook="http://169.254.169.254/latest/meta-data").enqueue()
    with pytest.raises(UsageError, match="loopback"):
        app.webhook("inside", "http://127.0.0.1:8000/")
    with pytest.raises(UsageError, match="must be a URL, or"):
        work.options(webhook={"link": "https://example.com"})
    with pytest.raises(UsageError, match=r"states .* must be some of: completed"):
        work.options(webhook={"url": "https://example.com", "states": ["running"]})


@pytest.mark.parametrize(
    "url",
    ["https://ada:hunter2zz@example.org/", "https://ada:hun[ter2zz@example.org/", "https:/ada:hunter2zz@example.org",
     "ada:hunter2zz@example.org", "https://ada:hunter2zz@example.org:port/", "https://ada:1#hunter2zz@example.org/",
     "https://ada:hunter2zz\u2100@example.org/", "ftp://ada:hunter2zz@example.org/", "https://ada:hunter2zz@exam ple/",
     "https://ada:hunter2zz", "https://example.org:0/?token=hunter2zz", "https://example.org/?token=hunter2zz#x"],
)  # fmt: skip
def test_no_error_shows_a_password_in_a_url(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_url(url, ())
    assert "ter2zz" not in str(refused.value) and "ter2zz" not in str(refused.value.__context__)
