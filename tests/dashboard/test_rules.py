"""Who may look and who may break, which names a browser may use, and how often: the rules alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from lockstead.dashboard.access import SESSION_LASTS, SESSIONS_MAX, Access, Limiter, cookie_name, host_name

ADMIN, READER = "an-admin-token-of-ours", "a-token-of-a-reader"


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def request(port: int = 8123, **headers: str) -> Request:
    said = [(name.replace("_", "-").encode(), text.encode("latin-1")) for name, text in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": said, "server": ("127.0.0.1", port)})


def rules(**given: Any) -> Access:
    settings: dict[str, Any] = {"token": None, "admin_token": None, "trusted_proxy_header": None, "hosts": ()}
    return Access(**{**settings, "clock": Clock(), **given})


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8123", "LOCALHOST", "127.0.0.1:8123", "[::1]:8123", "10.1.2.3", "locks.example:443"],
)
def test_addresses_localhost_and_given_names_are_ours(host: str) -> None:
    assert rules(hosts=["Locks.example"]).knows_host(request(host=host))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "locks.example.evil.example",
        "localhost.evil.example:8123",
        "127.0.0.1.evil.example",
        "[::1].evil.example",
        "[::1",
        "localhost:x",
        "localhost@evil.example",
        "",
    ],
)
def test_any_other_name_is_refused_which_a_page_elsewhere_could_have_pointed_here(host: str) -> None:
    assert not rules(hosts=["locks.example"]).knows_host(request(host=host))


@given(st.text(max_size=30))
def test_no_host_header_fails(host: str) -> None:
    name = host_name(host)
    assert name is None or name


# --- where a form comes from ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "same-origin", "origin": "https://proxy.example"}, True),
        ({"origin": "http://localhost:8123"}, True),
        ({"origin": "https://localhost:8123"}, True),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:8123"}, False),
        ({"sec_fetch_site": "cross-site", "origin": "http://localhost:8123"}, False),
        ({"sec_fetch_site": "none"}, False),
        ({"origin": "http://localhost:9000"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "file://localhost:8123"}, False),
        ({}, False),
    ],
)
def test_a_form_counts_only_from_a_page_of_ours(headers: dict[str, str], is_ours: bool) -> None:
    assert rules().is_same_origin(request(host="localhost:8123", **headers)) is is_ours


def test_without_a_host_no_origin_is_ours() -> None:
    assert not rules().is_same_origin(request(origin="http://"))


@pytest.mark.parametrize(
    ("site", "mode", "is_embedded"),
    [
        (None, None, False),
        ("same-origin", "cors", False),
        ("none", "navigate", False),
        ("cross-site", "navigate", False),
        ("cross-site", "cors", True),
        ("cross-site", "no-cors", True),
        ("same-site", "no-cors", True),
        ("cross-site", None, True),
    ],
)
def test_another_site_may_link_here_and_no_more(site: str | None, mode: str | None, is_embedded: bool) -> None:
    said = {name: text for name, text in (("sec_fetch_site", site), ("sec_fetch_mode", mode)) if text is not None}
    assert rules().is_embedded(request(**said)) is is_embedded


# --- tokens and sessions --------------------------------------------------------------------------------------------


def with_session(access: Access, token: str, port: int = 8123) -> Request:
    secret = access.log_in(token)
    return request(port, cookie=f"{cookie_name(request(port))}={secret}")


def test_without_tokens_everybody_looks_and_nobody_breaks() -> None:
    visitor = rules().visitor(request())
    assert (visitor.may_read, visitor.may_break) == (True, False)


def test_a_token_is_needed_to_look_and_the_other_one_to_break() -> None:
    access = rules(token=READER, admin_token=ADMIN)
    assert not access.visitor(request()).may_read
    reader, admin = access.visitor(with_session(access, READER)), access.visitor(with_session(access, ADMIN))
    assert (reader.may_read, reader.may_break) == (True, False)
    assert (admin.may_read, admin.may_break) == (True, True)


@pytest.mark.parametrize("wrong", ["", "x", READER + "x", READER[:-1], "ä€", "\udcff", ADMIN.upper()])
def test_a_wrong_token_opens_nothing(wrong: str) -> None:
    access = rules(token=READER, admin_token=ADMIN)
    assert access.log_in(wrong) is None


def test_one_token_alone_is_not_opened_by_nothing() -> None:
    assert rules(admin_token=ADMIN).log_in("") is None
    assert rules(token=READER).log_in("") is None


@pytest.mark.parametrize(
    ("header", "may_read"),
    [(f"Bearer {READER}", True), (f"bearer {ADMIN}", True), ("Bearer wrong", False), (f"Basic {READER}", False)],
)
def test_a_script_sends_the_token_and_may_look_alone(header: str, may_read: bool) -> None:
    visitor = rules(token=READER, admin_token=ADMIN).visitor(request(authorization=header))
    assert (visitor.may_read, visitor.may_break) == (may_read, False)


def test_a_session_ends() -> None:
    clock = Clock()
    access = rules(token=READER, clock=clock)
    asked = with_session(access, READER)
    clock.at += SESSION_LASTS - 1
    assert access.visitor(asked).may_read
    clock.at += 1
    assert not access.visitor(asked).may_read


def test_a_session_is_closed() -> None:
    access = rules(token=READER)
    asked = with_session(access, READER)
    access.log_out(asked)
    assert not access.visitor(asked).may_read


def test_the_sessions_are_bounded_and_the_oldest_ends_first() -> None:
    access = rules(token=READER)
    first, second = with_session(access, READER), with_session(access, READER)
    for _ in range(SESSIONS_MAX - 1):
        access.log_in(READER)
    assert not access.visitor(first).may_read
    assert access.visitor(second).may_read


def test_two_dashboards_of_one_host_have_cookies_of_their_own() -> None:
    """A host's ports share their cookies."""
    assert cookie_name(request(8123)) != cookie_name(request(8124))


def test_the_proofs_of_two_sessions_differ() -> None:
    access = rules(admin_token=ADMIN)
    one = access.visitor(with_session(access, ADMIN)).session
    two = access.visitor(with_session(access, ADMIN)).session
    assert one is not None
    assert two is not None
    assert access.has_proof(one, one.csrf)
    assert not access.has_proof(one, two.csrf)
    assert not access.has_proof(one, "")


def test_a_proxy_names_the_person_and_without_it_nobody_may_look() -> None:
    access = rules(trusted_proxy_header="X-User", token=None, admin_token=ADMIN)
    visitor = access.visitor(request(x_user="anna\x1b[31m" + "x" * 1000))
    assert (visitor.may_read, visitor.may_break) == (True, False)
    assert visitor.who.startswith("anna")
    assert visitor.who.isprintable()
    assert len(visitor.who) <= 200
    assert not access.visitor(request()).may_read
    # not even with a session of somebody whom the proxy let through
    assert not access.visitor(with_session(access, ADMIN)).may_read
    # a script has a token of its own
    script = access.visitor(request(authorization=f"Bearer {ADMIN}"))
    assert (script.may_read, script.may_break) == (True, False)


# --- limits ---------------------------------------------------------------------------------------------------------


def test_a_burst_passes_and_then_one_at_a_time() -> None:
    clock = Clock()
    limiter = Limiter(3, 10.0, clock)
    passed = []
    for _ in range(100):
        if limiter.wait("a") == 0:
            limiter.count("a")
            passed.append(clock.at - 1000)
        clock.at += 1
    assert passed == [0, 1, 2, 10, 20, 30, 40, 50, 60, 70, 80, 90]


def test_names_do_not_hinder_one_another_and_are_bounded() -> None:
    clock = Clock()
    limiter = Limiter(1, 10.0, clock)
    limiter.count("a")
    assert limiter.wait("a") == 10
    assert limiter.wait("b") == 0
    for number in range(limiter.names_max):
        limiter.count(str(number))
    assert len(limiter._free_at) == limiter.names_max
