"""Replies of Redis that come in one piece, in many, or are none: who reads them leaves nothing for the next one."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from lockstead.errors import OutcomeUnknown, StoreRefused
from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.access import Access, Kind
from lockstead.stores.redis.bounded import bounded
from lockstead.stores.redis.connection import Connection
from lockstead.stores.redis.errors import code_of
from lockstead.stores.redis.messages import Messages
from lockstead.stores.redis.plain import READ_AT_ONCE, PlainSocket
from lockstead.stores.redis.route import shown

PATIENCE: Final = 30.0

LONG: Final = b"x" * (2 * READ_AT_ONCE)


def text(said: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(said), said)


@contextmanager
def answering(*answers: list[bytes]) -> Iterator[Connection]:
    """Connect to a server that answers each request with the next of `answers`, piece by piece, and then ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for pieces in answers:
                    if not client.recv(4096):
                        return
                    for piece in pieces:
                        client.sendall(piece)
                        pause.wait(0.02 if len(pieces) > 1 else 0.0)

        pause = threading.Event()
        server = threading.Thread(target=serve)
        server.start()
        address = listening.getsockname()
        access = Access(Kind.SERVER, (address,), ways={"driver_info": None})
        connection = Connection(bounded(access, address, Bounds(PATIENCE)), shown(address))
        try:
            connection.connect(Bounds(PATIENCE), is_secure=False, is_master=False)
            yield connection
        finally:
            connection.close()
            server.join(PATIENCE)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([text(b"ok 1")], id="in one piece"),
        pytest.param([b"$", b"4\r", b"\nok", b" 1\r", b"\n"], id="in five pieces"),
        pytest.param([b"$4\r\nok 1\r", b"\n"], id="all but its last byte first"),
    ],
)
def test_a_text_is_read_to_its_end_and_no_further(pieces: list[bytes]) -> None:
    with answering(pieces, [text(b"next")], [text(b"\r\n")], [text(b"")]) as connection:
        assert connection.exchange_one(b"one", Bounds(PATIENCE)) == b"ok 1"
        assert connection.exchange_one(b"two", Bounds(PATIENCE)) == b"next"
        assert connection.exchange_one(b"three", Bounds(PATIENCE)) == b"\r\n"
        assert connection.exchange_one(b"four", Bounds(PATIENCE)) == b""


def test_a_text_longer_than_what_is_read_at_once_is_read_whole() -> None:
    with answering([text(LONG)], [text(b"next")]) as connection:
        assert connection.exchange_one(b"one", Bounds(PATIENCE)) == LONG
        assert connection.exchange_one(b"two", Bounds(PATIENCE)) == b"next"


def test_an_error_of_the_server_is_an_answer_and_the_connection_goes_on() -> None:
    answers = [[b"-NOSCRIPT No matching script.\r\n"], [b"-MOVED 42 127.0", b".0.1:7001\r\n"], [text(b"ok")]]
    with answering(*answers) as connection:
        unknown, moved = (
            connection.exchange_one(b"one", Bounds(PATIENCE)),
            connection.exchange_one(b"two", Bounds(PATIENCE)),
        )
        assert (code_of(unknown), code_of(moved)) == ("NOSCRIPT", "MOVED")
        assert str(moved).split()[-1] == "127.0.0.1:7001"
        assert connection.exchange_one(b"three", Bounds(PATIENCE)) == b"ok"


def test_a_request_longer_than_the_system_takes_at_once_is_sent_whole() -> None:
    request = b"x" * 20_000_000
    received = 0
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            nonlocal received
            client, _ = listening.accept()
            with client:
                while received < len(request) and (came := client.recv(65536)):
                    received += len(came)
                client.sendall(text(b"ok"))

        server = threading.Thread(target=serve)
        server.start()
        with socket.create_connection(listening.getsockname()) as connected:
            assert PlainSocket(connected).exchange(request, Bounds(PATIENCE)) == b"ok"
        server.join(PATIENCE)
    assert received == len(request)


TORN: Final = [
    [],
    [b"$4\r\nok"],
    [b"$4x\r\nok 1\r\n"],
    [b"nonsense\r\n"],
    [b"$-1\r\n"],
    [b":7\r\n"],
    [text(b"ok") + text(b"unasked")],
]


@pytest.mark.parametrize("torn", TORN)
def test_an_answer_that_is_torn_or_none_leaves_the_outcome_unknown(torn: list[bytes]) -> None:
    with answering(torn) as connection, pytest.raises(OutcomeUnknown):
        connection.exchange_one(b"one", Bounds(PATIENCE))


def test_a_server_that_is_silent_leaves_the_outcome_unknown() -> None:
    with (
        answering([], []) as connection,
        pytest.raises(OutcomeUnknown, match=r"no answer from Redis at .* within 0.05 s"),
    ):
        connection.exchange_one(b"one", Bounds(0.05))


def test_a_connection_on_which_something_unasked_was_said_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstead.stores.redis.connection.IDLE_CHECKED", 0.0)
    with answering([text(b"ok")], [text(b"ok"), text(b"unasked")], []) as connection:
        assert connection.exchange_one(b"one", Bounds(PATIENCE)) == b"ok"
        assert connection.is_usable()
        assert connection.exchange_one(b"two", Bounds(PATIENCE)) == b"ok"
        seen = threading.Event()
        for _ in range(1000):
            if not connection.is_usable():
                break
            seen.wait(0.01)
        else:
            pytest.fail("it was taken for usable with an answer on it that nobody asked for")


def test_a_connection_that_ended_while_it_idled_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstead.stores.redis.connection.IDLE_CHECKED", 0.0)
    with answering([text(b"ok")]) as connection:
        assert connection.exchange_one(b"one", Bounds(PATIENCE)) == b"ok"
        pause = threading.Event()
        for _ in range(1000):
            if not connection.is_usable():
                break
            pause.wait(0.01)
        else:
            pytest.fail("it was taken for usable after its end")


SUBSCRIBED: Final = b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"
PUBLISHED: Final = b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$%d\r\n%b\r\n"


def heard(messages: Messages, count: int) -> list[bytes]:
    came = messages.first
    while len(came) < count:
        assert select.select([messages], [], [], PATIENCE)[0], came
        came += messages.read()
    return came


def test_messages_are_heard_one_by_one_however_they_come() -> None:
    first, second, third = (PUBLISHED % (len(said), said) for said in (b"a", b"two\r\nlines", b""))
    # the first comes with the answer to the subscription
    pieces = [SUBSCRIBED + first + second[:20], second[20:-1], second[-1:] + third[:9], third[9:]]
    with answering(pieces) as connection:
        messages = Messages(connection, b"news", PATIENCE)
        assert heard(messages, 3) == [b"a", b"two\r\nlines", b""]
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            heard(messages, 4)


def test_many_messages_at_once_are_all_heard() -> None:
    texts = [b"%d" % number + b"x" * 1000 for number in range(100)]
    said = b"".join(PUBLISHED % (len(each), each) for each in texts)
    with answering([SUBSCRIBED, said]) as connection:
        assert heard(Messages(connection, b"news", PATIENCE), len(texts)) == texts


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param(b"-ERR go away\r\n", "not a message", id="an error"),
        pytest.param(b":7\r\n", "not a message", id="a number"),
        pytest.param(PUBLISHED.replace(b"news", b"nows") % (1, b"a"), "not a message", id="of another channel"),
        pytest.param(PUBLISHED % (1, b"a") + b"xyz", "not a message", id="something behind it"),
        pytest.param(b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$x\r\n", "invalid literal", id="of no size"),
        pytest.param(b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$65537\r\nx", "names no record", id="too long"),
        pytest.param(b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$" + b"1" * 9, "names no record", id="size without end"),
    ],
)
def test_what_is_no_message_to_the_channel_ends_the_listening(said: bytes, why: str) -> None:
    with answering([SUBSCRIBED], [said]) as connection:
        messages = Messages(connection, b"news", PATIENCE)
        assert messages.first == []
        connection.client.raw.sendall(b"go on")
        with pytest.raises((OSError, ValueError), match=why):
            heard(messages, 1)


def test_who_may_not_subscribe_is_told_so() -> None:
    with (
        answering([b"-NOPERM this user has no permissions\r\n"]) as connection,
        pytest.raises(StoreRefused, match="may not"),
    ):
        Messages(connection, b"news", PATIENCE)
