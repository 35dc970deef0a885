"""Tickets of other versions: one clear line for a newer or an older major, and later additions are passed over."""

from __future__ import annotations

import base64
import json
import re
import zlib

import pytest

import lockstead
from lockstead.values import TICKET_VERSION, LeaseTicket
from tests.interop.places import Place
from tests.interop.recordings import recording


def ticket(version: int, fields: object, *, summed: bool = True) -> str:
    """Write a ticket as a version of lockstead might. The first ones were not summed."""
    body = json.dumps(fields).encode()
    head = zlib.crc32(body).to_bytes(4, "big") if summed else b""
    return f"lockstead{version}." + base64.urlsafe_b64encode(head + body).decode().rstrip("=")


FIELDS = ["memory:x", "apt", "old/1", "7", 300.0]


@pytest.mark.parametrize(
    ("version", "way_out"), [(TICKET_VERSION + 1, "upgrade this process"), (12, "upgrade"), (0, "issue a new one")]
)
def test_h30_a_ticket_of_another_major_is_refused_in_one_clear_line(version: int, way_out: str) -> None:
    text = ticket(version, {"whatever": "it says"})
    with pytest.raises(ValueError, match=rf"the lease ticket has version {version}, .* reads 2: {way_out}") as refused:
        LeaseTicket.parse(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("call", ["attach", "release", "renew"])
def test_h30_a_newer_ticket_is_refused_by_whoever_takes_one(place: Place, call: str) -> None:
    lock = place.client.lock("apt")
    verbs = {"attach": lock.attach, "release": lock.release, "renew": lock.renew}
    with pytest.raises(ValueError, match="upgrade this process"):
        verbs[call](ticket(TICKET_VERSION + 1, FIELDS))


READ = LeaseTicket("memory:x", "apt", "old/1", "7", 300.0)


def test_h30_what_a_later_version_adds_to_a_ticket_is_passed_over() -> None:
    assert LeaseTicket.parse(ticket(1, [*FIELDS, {"new": "field"}, 7])) == READ


def test_h30_the_first_tickets_had_no_sum_and_are_read() -> None:
    assert LeaseTicket.parse(ticket(1, FIELDS, summed=False)) == READ
    for text in recording("lockstead-e829f36")["tickets"].values():
        assert LeaseTicket.parse(text).holder.startswith("recorder:")


def test_a_sum_that_is_wrong_is_not_taken_for_none() -> None:
    whole = ticket(1, FIELDS)
    raw = base64.urlsafe_b64decode(whole.removeprefix("lockstead1.") + "==")
    for wrong in (b"[   ", b"    ", b"[[[[", b"\0\0\0\0"):
        damaged = wrong + raw[4:]
        with pytest.raises(ValueError, match="not a lease ticket"):
            LeaseTicket.parse("lockstead1." + base64.urlsafe_b64encode(damaged).decode().rstrip("="))


def test_a_ticket_says_its_major() -> None:
    with lockstead.connect("memory:tickets") as client:
        text = str(client.lock("apt").acquire(timeout=10).detach())
    assert re.fullmatch(r"lockstead1\.[A-Za-z0-9_-]+", text)


def test_a_ticket_of_a_reader_says_another_major_so_that_older_clients_refuse_it() -> None:
    with lockstead.connect("memory:") as client:
        text = str(client.lock("apt", mode="shared").acquire(timeout=10).share())
    assert text.startswith(f"lockstead{TICKET_VERSION}.")
    assert LeaseTicket.parse(text).mode == "shared"


@pytest.mark.parametrize("later", [[], ["odd", "g", "7"], ["shared", "", "7"], ["shared", "g"]])
def test_a_ticket_of_a_mode_that_is_not_known_is_refused(later: list[str]) -> None:
    with pytest.raises(ValueError, match="not a lease ticket"):
        LeaseTicket.parse(ticket(2, [*FIELDS, *later]))


@pytest.mark.parametrize(
    "text", ["", "lockstead1.", "lockstead1.e30", "lockstead.x", "locksteadX.e30", "lockstead99999999999.x", "x"]
)
def test_what_is_no_ticket_at_all_is_still_called_so(text: str) -> None:
    with pytest.raises(ValueError, match="not a lease ticket"):
        LeaseTicket.parse(text)
