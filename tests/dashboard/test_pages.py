"""What the pages answer: locks, filters, hostile records, breaking, logging in, headers; asked without a server."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import Message

from lockstead import AsyncClient, LeaseLost, StoreUnavailable
from lockstead.dashboard import create_app
from lockstead.dashboard.pages import FORM_BYTES_MAX, read_form
from lockstead.protocol.commands import Command, Create
from lockstead.stores.memory import MemoryStore
from lockstead.values import Name
from tests.dashboard.asked import ADMIN, OURS, READER, SITE, Asker, asked, asking
from tests.runtime.faulty import Faulty, quiet

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{7*7}}{% raw %}"


def keys_in(page: str) -> list[str]:
    """Return the keys of the locks that a page shows, in order."""
    return [html.unescape(key) for key in re.findall(r'href="lock\?store=[^"]*&amp;key=([^"&]*)"', page)]


# --- the list -------------------------------------------------------------------------------------------------------


def test_the_list_shows_every_lock_and_the_overdue_first() -> None:
    async def body(asker: Asker) -> None:
        client = asker.client
        settings: dict[str, Any] = {"purpose": "publish", "labels": {"team": "deb"}, "owner": "ci/7"}
        async with client.lock("apt", **settings).hold() as lease, client.lock("zoo", expected=0.001).hold():
            lease.progress("3 of 5")
            await lease.renew()
            page = await asker.page()
            assert keys_in(page) == ["zoo", "apt"]
            for text in ("ci/7", "publish", "team=deb", "3 of 5", "overdue"):
                assert text in page.replace("<wbr>", ""), text
            assert 'value="60"' in page

    asked(body)


def test_readers_and_permits_are_shown_with_their_lock() -> None:
    async def body(asker: Asker) -> None:
        async with (
            AsyncClient(asker.store.beside(), listener=quiet) as other,
            asker.client.lock("index", mode="shared", owner="reader-1").hold(),
            other.lock("index", mode="shared", owner="reader-2").hold(),
            asker.client.semaphore("slots", 3, owner="worker-1").hold(),
        ):
            page = (await asker.page()).replace("<wbr>", "")
            assert keys_in(page) == ["index", "slots"]
            assert "reader-1, reader-2" in page
            assert "1 of 3 permits held" in page
            assert "worker-1" in (await asker.lock("slots")).replace("<wbr>", "")

    asked(body)


def test_a_filter_finds_what_the_page_has_no_room_for_and_the_address_keeps_it() -> None:
    async def body(asker: Asker) -> None:
        keys = [f"job-{number:03}" for number in range(30)]
        async with await asker.client.try_many(keys, labels={"team": "deb"}, owner="ci/1") as batch:
            assert len(batch.leases) == 30
            page = await asker.page()
            assert keys_in(page) == keys[:10]
            assert "20 more" in re.sub(r"<[^>]+>", "", page)
            assert keys_in(await asker.page(q="job-02")) == keys[20:30]
            assert keys_in(await asker.page(q="JOB-027")) == ["job-027"]
            some = await asker.page(owner="ci/1", label="team=deb", state="held", q="job-02")
            assert keys_in(some) == keys[20:30]
            for nothing in ({"owner": "ci/2"}, {"label": "team=rpm"}, {"state": "overdue"}, {"store": "sqlite:///x"}):
                assert keys_in(await asker.page(**nothing)) == []
            kept = await asker.page(q="job-02", state="held")
            assert 'value="job-02"' in kept
            assert "events?q=job-02&amp;state=held" in kept

    asked(body, rows_max=10)


def test_a_link_to_a_run_is_a_link_if_it_is_one() -> None:
    async def body(asker: Asker) -> None:
        client = asker.client
        async with (
            client.lock("good", labels={"url": "https://ci.example/run/7?a=b&c=d#e"}).hold(),
            client.lock("bad", labels={"url": "javascript:alert(1)"}).hold(),
            client.lock("user", labels={"url": "https://bank.example@evil.example/"}).hold(),
        ):
            for page in (await asker.page(), *[await asker.lock(key) for key in ("good", "bad", "user")]):
                links = [html.unescape(link) for link in re.findall(r'href="([^"]*)"', page)]
                outward = {link for link in links if ":" in link.partition("?")[0]}
                assert outward <= {"https://ci.example/run/7?a=b&c=d#e"}
            assert 'rel="noopener noreferrer nofollow"' in await asker.lock("good")

    asked(body)


# --- hostile records ------------------------------------------------------------------------------------------------


def test_h39_no_text_of_a_record_becomes_a_part_of_a_page() -> None:
    """Every field is hostile; each page has the same elements as one of harmless records."""

    async def body(asker: Asker) -> None:
        client = asker.client
        await asker.log_in()
        seen = []
        for text in ("harmless", HOSTILE):
            settings: dict[str, Any] = {"owner": text, "purpose": text, "labels": {"a": text, "url": text}}
            async with client.lock(text, backtrace=True, **settings).hold() as lease:
                lease.progress(text)
                await lease.renew()
                await asker.round()
                form = await asker.form(text)
                broken = await asker.browser.post("/break", data={**form, "reason": text, "by": text}, headers=OURS)
                assert broken.status_code == 303
                await asker.round()
                pages = [
                    await asker.page("/" + broken.headers["location"]),
                    await asker.page(),
                    await asker.page(q=text),
                ]
                pages.append(await asker.page("/lock", store=text, key=text, status=404))
                pages.append(await asker.page("/login", next=text))
            seen.append([re.findall(r"<[a-z!/][^ >]*", page.replace("<wbr>", "")) for page in pages])
            assert all("<script>alert" not in page and "49" not in re.findall(r"\D49\D", page) for page in pages)
        assert seen[0] == seen[1]

    asked(body, admin_token=ADMIN)


@pytest.mark.parametrize("fields", [{"v": "99"}, {"v": "99", "identity": HOSTILE, "owner": HOSTILE}, {}])
def test_an_unreadable_record_is_shown_and_breaks_nothing(fields: dict[str, str]) -> None:
    async def body(asker: Asker) -> None:
        asker.store.perform(Create(Name("bad"), fields), 1.0)
        async with asker.client.lock("good").hold():
            page = await asker.page()
            assert keys_in(page) == ["bad", "good"]
            assert "unreadable" in page
            assert "unreadable" in (await asker.lock("bad")).lower()

    asked(body)


def test_a_page_stays_bounded_whatever_a_record_has() -> None:
    async def body(asker: Asker) -> None:
        labels = {f"label-{number}": "x" * 60 for number in range(60)}
        async with asker.client.lock("k" * 400, purpose="p" * 1500, labels=labels).hold():
            assert len(await asker.page()) < 40_000

    asked(body)


# --- stores ---------------------------------------------------------------------------------------------------------


def test_a_store_that_is_down_keeps_its_last_state_and_comes_back() -> None:
    def down(_command: Command[Any]) -> None:
        raise StoreUnavailable("connection <b>refused</b>")

    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt").hold():
            assert keys_in(await asker.page()) == ["apt"]
            asker.store.before = down
            await asker.round()
            page = await asker.page()
            assert keys_in(page) == ["apt"]
            assert "connection &lt;b&gt;refused&lt;/b&gt;" in page
            assert keys_in(page) == ["apt"]
            lock = await asker.lock("apt")
            assert "connection &lt;b&gt;refused" in lock
            asker.store.before = lambda _command: None
            await asker.round()
            assert "refused" not in await asker.page()

    asked(body)


def test_a_store_that_never_answered_is_shown_as_down_within_the_page() -> None:
    def down(_command: Command[Any]) -> None:
        raise StoreUnavailable("connection refused")

    async def body(asker: Asker) -> None:
        asker.store.before = down
        page = await asker.page()
        assert keys_in(page) == []
        assert "connection refused" in page
        assert "connection refused" in await asker.page("/lock", store=asker.url, key="apt")

    asked(body)


def test_several_stores_are_one_list() -> None:
    async def run() -> None:
        one, two = Faulty(), Faulty()
        async with AsyncClient(one, listener=quiet) as first, asking(two) as asker:
            with pytest.raises(ValueError, match="is given twice"):
                create_app([first, first])
            assert asker.url == one.url  # two stores in memory have one name, so they cannot be told apart
            with pytest.raises(ValueError, match="is given twice"):
                create_app([first, asker.client])

    asyncio.run(run())


# --- metrics --------------------------------------------------------------------------------------------------------


def test_the_metrics_are_those_of_a_round_by_the_names_of_locks() -> None:
    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt-1", expected=0.001).hold(), asker.client.lock("yum").hold():
            answer = await asker.browser.get("/metrics")
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            assert f'lockstead_overdue{{lock="apt",store="{asker.url}"}} 1.0' in answer.text
            assert f'lockstead_overdue{{lock="other",store="{asker.url}"}} 0.0' in answer.text

    asked(body, lock_labels=["apt-*=apt"])


# --- headers and names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/login", "/metrics", "/nothing", "/static/dashboard.css", "/healthz"])
def test_every_answer_has_the_headers_that_protect_a_page(path: str) -> None:
    async def body(asker: Asker) -> None:
        headers = (await asker.browser.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == ("max-age=31536000, immutable" if "static" in path else "no-store")

    asked(body)


def test_h39_no_page_has_a_script_or_a_style_of_its_own() -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in()
        async with asker.client.lock("apt", expected=60, labels={"a": "b"}).hold() as lease:
            lease.progress("1 of 2")
            form = await asker.form("apt")
            pages = [await asker.page(), await asker.lock("apt"), await asker.page("/break", **form)]
        for page in pages:
            assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
            assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:", page) == []

    asked(body, admin_token=ADMIN)


def test_h39_a_name_that_another_site_may_have_pointed_here_is_refused() -> None:
    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt-secret").hold():
            for path in ("/", "/events", "/metrics", "/lock", "/login"):
                answer = await asker.browser.get(path, headers={"host": "evil.example:8123"})
                assert answer.status_code == 421
                assert "apt-secret" not in answer.text
            assert (await asker.browser.get("/healthz", headers={"host": "evil.example"})).text == "ok\n"

    asked(body)


def test_h39_another_site_cannot_hold_a_stream_open() -> None:
    async def body(asker: Asker) -> None:
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        assert (await asker.browser.get("/events", headers=headers)).status_code == 403
        assert asker.dash.tabs == 0
        headers["sec-fetch-mode"] = "navigate"
        assert (await asker.browser.get("/", headers=headers)).is_success

    asked(body)


# --- logging in -----------------------------------------------------------------------------------------------------


def test_without_the_token_nothing_of_a_lock_is_told() -> None:
    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt-secret").hold():
            for path in ("/", "/events", "/metrics", "/lock", "/lock-events", "/break", "/nothing"):
                answer = await asker.browser.get(path, params={"store": asker.url, "key": "apt-secret"})
                assert answer.status_code in (303, 401)
                assert "apt-secret" not in answer.text
            assert (await asker.browser.get("/metrics", headers={"authorization": f"Bearer {READER}"})).is_success
            assert (await asker.log_in(READER)).headers["location"] == "./"
            assert keys_in(await asker.page()) == ["apt-secret"]

    asked(body, token=READER)


def test_after_a_login_one_is_where_one_wanted_to_be_and_never_elsewhere() -> None:
    async def body(asker: Asker) -> None:
        wanted = await asker.browser.get("/", params={"q": "apt", "state": "held"})
        assert wanted.headers["location"] == "login?next=.%2F%3Fq%3Dapt%26state%3Dheld"
        for there, ends in [
            ("./?q=apt&state=held", "./?q=apt&state=held"),
            ("lock?store=a&key=b", "lock?store=a&key=b"),
            ("//evil.example", "./"),
            ("https://evil.example/", "./"),
            ("javascript:alert(1)", "./"),
            ("\\\\evil.example", "./"),
            ("./?a\r\nset-cookie: a=b", "./"),
            ("", "./"),
        ]:
            data = {"token": READER, "next": there}
            assert (await asker.browser.post("/login", data=data, headers=OURS)).headers["location"] == ends

    asked(body, token=READER)


def test_the_cookie_is_of_no_use_to_scripts_and_other_sites() -> None:
    async def body(asker: Asker) -> None:
        cookie = (await asker.log_in()).headers["set-cookie"].lower()
        assert {"httponly", "samesite=lax", "path=/"} <= set(cookie.split("; "))
        assert "secure" not in cookie.split("; ")
        assert ADMIN not in cookie
        headers = {**OURS, "origin": "https://locks.example"}
        behind = await asker.browser.post("/login", data={"token": ADMIN}, headers=headers)
        assert "secure" in behind.headers["set-cookie"].lower().split("; ")

    asked(body, admin_token=ADMIN)


def test_wrong_tokens_are_limited_and_the_right_one_has_to_wait_as_well() -> None:
    async def run() -> None:
        now = [1000.0]
        async with asking(admin_token=ADMIN, clock=lambda: now[0]) as asker:
            assert [(await asker.log_in("wrong")).status_code for _ in range(7)] == [403] * 5 + [429] * 2
            refused = await asker.log_in()
            assert refused.status_code == 429
            assert "Try again in 10 seconds" in refused.text
            assert ADMIN not in refused.text
            now[0] += 10
            assert (await asker.log_in()).status_code == 303

    asyncio.run(run())


def test_a_session_is_closed_by_a_form_of_ours_alone() -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in()
        page = await asker.page()
        proof = re.findall(r'name="csrf" value="([^"]*)"', page)[0]
        await asker.browser.post("/logout", data={"csrf": "wrong"}, headers=OURS)
        assert "Log out" in await asker.page()
        await asker.browser.post("/logout", data={"csrf": proof}, headers=OURS)
        assert "Log out" not in await asker.page()

    asked(body, admin_token=ADMIN)


# --- breaking -------------------------------------------------------------------------------------------------------


def test_without_an_admin_token_nothing_can_be_broken() -> None:
    async def body(asker: Asker) -> None:
        async with asker.client.lock("apt").hold() as lease:
            assert "break?" not in await asker.lock("apt")
            (held,) = await asker.client.list()
            form = {"store": asker.url, "key": "apt", "incarnation": held.incarnation, "reason": "x"}
            assert "read-only" in await asker.page("/break", status=403, **form)
            assert (await asker.browser.post("/break", data=form, headers=OURS)).status_code == 403
            assert await lease.renew()
            assert await asker.client.history() == []

    asked(body)


def test_a_reader_of_the_dashboard_breaks_nothing() -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in(READER)
        async with asker.client.lock("apt").hold() as lease:
            assert "break?" not in await asker.lock("apt")
            (held,) = await asker.client.list()
            form = {"store": asker.url, "key": "apt", "incarnation": held.incarnation, "reason": "x"}
            answer = await asker.browser.post("/break", data=form, headers=OURS)
            assert answer.headers["location"].startswith("login?")
            assert await lease.renew()

    asked(body, token=READER, admin_token=ADMIN)


def test_a_break_says_what_happens_and_tells_holder_and_history_why() -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in()
        lease = await asker.client.lock("apt", ttl=40).acquire()
        form = await asker.form("apt")
        shown = await asker.page("/break", **form)
        assert re.search(r"stops at its next renewal, at the latest in (39|40) s", shown)
        assert "The lock is free at once." in shown
        done = await asker.browser.post("/break", data={**form, "reason": "it hangs", "by": "anna"}, headers=OURS)
        assert done.status_code == 303
        assert "apt is revoked" in await asker.page("/" + done.headers["location"])
        assert "apt is revoked" not in await asker.page("/" + done.headers["location"])
        with pytest.raises(LeaseLost, match="it hangs"):
            await lease.renew()
        (entry,) = await asker.client.history("apt")
        assert (entry.by, entry.reason, entry.what) == ("anna", "it hangs", "revoked")

    asked(body, admin_token=ADMIN)


def test_a_break_is_by_whom_the_proxy_names() -> None:
    async def body(asker: Asker) -> None:
        asker.browser.headers["x-user"] = "anna@example.org"
        await asker.log_in()
        async with asker.client.lock("apt").hold():
            form = {**await asker.form("apt"), "reason": "it hangs", "by": "somebody else", "now": "yes"}
            await asker.browser.post("/break", data=form, headers=OURS)
            (entry,) = await asker.client.history("apt")
            assert (entry.by, entry.what) == ("anna@example.org", "removed")

    asked(body, admin_token=ADMIN, trusted_proxy_header="X-User")


def test_h39_another_lease_than_the_one_shown_is_never_broken() -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in()
        lock = asker.client.lock("apt")
        first = await lock.acquire()
        form = {**await asker.form("apt"), "reason": "x"}
        await first.release()
        second = await lock.acquire()
        answer = await asker.browser.post("/break", data=form, headers=OURS)
        assert answer.status_code == 409
        assert "Nothing was broken" in answer.text
        assert await second.renew()
        await second.release()
        free = await asker.browser.post("/break", data=form, headers=OURS)
        assert free.status_code == 409
        assert "is free" in free.text
        assert await asker.client.history() == []

    asked(body, admin_token=ADMIN)


def test_one_reader_or_one_permit_is_broken_alone() -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in()
        other = AsyncClient(asker.store.beside(), listener=quiet)
        shared = [client.lock("index", mode="shared") for client in (asker.client, other)]
        readers = [await lock.acquire() for lock in shared]
        await asker.round()
        form = await asker.form("index", 2)
        assert form["reader"] == readers[1].holder
        await asker.browser.post("/break", data={**form, "reason": "x"}, headers=OURS)
        assert await readers[0].renew()
        with pytest.raises(LeaseLost):
            await readers[1].renew()
        permits = [await client.semaphore("slots", 2).acquire() for client in (asker.client, other)]
        shown = await asker.client.semaphore("slots").inspect()
        assert shown is not None
        permits.sort(key=lambda lease: [one.holder for one in shown.held].index(lease.holder))
        await asker.round()
        form = await asker.form("slots", 1)
        assert form["slot"] == "1"
        await asker.browser.post("/break", data={**form, "reason": "x"}, headers=OURS)
        assert await permits[0].renew()
        with pytest.raises(LeaseLost):
            await permits[1].renew()
        await readers[0].release()
        await permits[0].release()
        await other.close()

    asked(body, admin_token=ADMIN)


@pytest.mark.parametrize(
    ("changed", "headers", "status"),
    [
        ({"csrf": "wrong"}, OURS, 403),
        ({"csrf": ""}, OURS, 403),
        ({}, {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, 403),
        ({}, {"origin": "https://evil.example"}, 403),
        ({}, {}, 403),
        ({"reason": " \t"}, OURS, 400),
        ({"store": "sqlite:///other.db"}, OURS, 409),
        ({"key": ""}, OURS, 409),
        ({"incarnation": "0"}, OURS, 409),
        ({"padding": "x" * FORM_BYTES_MAX}, OURS, 403),
    ],
)
def test_h39_a_form_that_is_not_the_one_shown_breaks_nothing(
    changed: dict[str, str], headers: dict[str, str], status: int
) -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in()
        async with asker.client.lock("apt").hold() as lease:
            form = {**await asker.form("apt"), "reason": "x", **changed}
            answer = await asker.browser.post("/break", data=form, headers=headers)
            assert answer.status_code == status
            assert await lease.renew()
            assert await asker.client.history() == []

    asked(body, admin_token=ADMIN)


def test_breaks_are_limited() -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in()
        answers = []
        for number in range(6):
            await asker.client.lock(f"job-{number}").acquire()
            await asker.round()
            form = {**await asker.form(f"job-{number}"), "reason": "x"}
            answers.append((await asker.browser.post("/break", data=form, headers=OURS)).status_code)
        assert answers == [303] * 5 + [429]
        assert len(await asker.client.history()) == 5

    asked(body, admin_token=ADMIN, clock=lambda: 1000.0)


def test_a_form_is_refused_as_text_of_another_kind() -> None:
    async def body(asker: Asker) -> None:
        answer = await asker.browser.post("/login", json={"token": ADMIN}, headers=OURS)
        assert answer.status_code == 403
        answer = await asker.browser.post("/login", content=b"token=%ff\xff", headers=OURS)
        assert answer.status_code == 403

    asked(body, admin_token=ADMIN)


# --- mounted --------------------------------------------------------------------------------------------------------


def test_it_works_below_another_application_that_does_not_start_it() -> None:
    async def run() -> None:
        store = MemoryStore()
        async with AsyncClient(store, listener=quiet) as client, client.lock("apt").hold():
            app = create_app([client], admin_token=ADMIN)
            outer = Starlette(routes=[Mount("/ops/locks", app)])
            transport = httpx.ASGITransport(outer)
            async with httpx.AsyncClient(transport=transport, base_url=SITE, follow_redirects=True) as browser:
                page = await browser.get("/ops/locks/")
                assert keys_in(page.text) == ["apt"]
                for link in re.findall(r'(?:href|src)="([^"]*)"', page.text):
                    found = await browser.get(page.url.join(html.unescape(link)))
                    assert found.is_success, link
                answer = await browser.post("/ops/locks/login", data={"token": ADMIN}, headers=OURS)
                assert answer.url.path == "/ops/locks/"
                assert "Log out" in answer.text
                assert [cookie.path for cookie in browser.cookies.jar] == ["/ops/locks/"]
            await app.state.dashboard.stop()

    asyncio.run(run())


def test_a_browser_that_leaves_within_a_form_is_no_error() -> None:
    async def body() -> None:
        async def receive() -> Message:
            return next(parts)

        beginning: Message = {"type": "http.request", "body": b"token=", "more_body": True}
        parts = iter([beginning, {"type": "http.disconnect"}])
        kind = (b"content-type", b"application/x-www-form-urlencoded")
        assert await read_form(Request({"type": "http", "headers": [kind]}, receive)) == {}

    asyncio.run(body())


def test_breaks_that_are_asked_for_at_once_are_limited_like_others() -> None:
    async def body(asker: Asker) -> None:
        await asker.log_in()
        leases = [await asker.client.lock(f"job-{number}").acquire() for number in range(8)]
        await asker.round()
        forms = [{**await asker.form(lease.key), "reason": "it hangs"} for lease in leases]
        answers = await asyncio.gather(*(asker.browser.post("/break", data=form, headers=OURS) for form in forms))
        assert sorted(answer.status_code for answer in answers) == [303] * 5 + [429] * 3

    asked(body, admin_token=ADMIN)
