"""Replies of Redis that come in one piece, in many, or not at all: a reader leaves nothing for the next one."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from lockstead.errors import OutcomeUnknown, StoreRefused
from lockstead.stores.bounds import Bounds
from lockstead.stores.redis.access import Access, Kind
from lockstead.stores.redis.connection import READ_AT_ONCE, Connection, connected
from lockstead.stores.redis.errors import code_of
from lockstead.stores.redis.messages import Messages
from lockstead.stores.redis.resp import Replies, ServerError, encoded
from tests.servers.redis import certificate

PATIENCE: Final = 30.0

LONG: Final = b"x" * (2 * READ_AT_ONCE)


def text(said: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(said), said)


@contextmanager
def answering(*answers: list[bytes], tls: ssl.SSLContext | None = None, after: int = 1) -> Iterator[Connection]:
    """Connect to a server that answers each request with the next of `answers`, piece by piece, and then ends.

    after: how many bytes of a request it reads first.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client if tls is None else tls.wrap_socket(client, server_side=True) as client:
                for pieces in answers:
                    received = 0
                    while received < after:
                        came = len(client.recv(65536))
                        if not came:
                            return
                        received += came
                    for piece in pieces:
                        client.sendall(piece)
                        pause.wait(0.02 if len(pieces) > 1 else 0.0)

        pause = threading.Event()
        server = threading.Thread(target=serve)
        server.start()
        kwargs = {"driver_info": None} | ({} if tls is None else {"ssl_cert_reqs": "none", "ssl_check_hostname": False})
        # a node of a Cluster is not asked for its role
        access = Access(Kind.CLUSTER, (listening.getsockname(),), is_secure=tls is not None, kwargs=kwargs)
        connection = connected(access, (access.addresses[0], False), time.monotonic() + PATIENCE)
        try:
            yield connection
        finally:
            connection.close()
            server.join(PATIENCE)


def asked(connection: Connection, word: bytes, limit: float = PATIENCE) -> Any:
    (reply,) = connection.exchange([(word,)], Bounds(limit))
    return reply


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> ssl.SSLContext | None:
    if request.param == "plain":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path))
    return context


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([text(b"ok 1")], id="in one piece"),
        pytest.param([b"$", b"4\r", b"\nok", b" 1\r", b"\n"], id="in five pieces"),
        pytest.param([b"$4\r\nok 1\r", b"\n"], id="all but its last byte first"),
    ],
)
def test_a_text_is_read_to_its_end_and_no_further(pieces: list[bytes], tls: ssl.SSLContext | None) -> None:
    with answering(pieces, [text(b"next")], [text(b"\r\n")], [text(b"")], tls=tls) as connection:
        assert asked(connection, b"one") == b"ok 1"
        assert asked(connection, b"two") == b"next"
        assert asked(connection, b"three") == b"\r\n"
        assert asked(connection, b"four") == b""


def test_a_text_longer_than_what_is_read_at_once_is_read_whole(tls: ssl.SSLContext | None) -> None:
    with answering([text(LONG)], [text(b"next")], tls=tls) as connection:
        assert asked(connection, b"one") == LONG
        assert asked(connection, b"two") == b"next"


def test_an_error_reply_keeps_the_connection() -> None:
    answers = [[b"-NOSCRIPT No matching script.\r\n"], [b"-MOVED 42 127.0", b".0.1:7001\r\n"], [text(b"ok")]]
    with answering(*answers) as connection:
        unknown, moved = (
            asked(connection, b"one"),
            asked(connection, b"two"),
        )
        assert (code_of(unknown), code_of(moved)) == ("NOSCRIPT", "MOVED")
        assert str(moved).split()[-1] == "127.0.0.1:7001"
        assert asked(connection, b"three") == b"ok"


def test_a_request_longer_than_the_system_takes_at_once_is_sent_whole(tls: ssl.SSLContext | None) -> None:
    words = (b"x" * 20_000_000,)
    with answering([text(b"ok")], tls=tls, after=len(encoded([words]))) as connection:
        assert connection.exchange([words], Bounds(PATIENCE)) == [b"ok"]


REPLIES: Final = {
    b"+OK\r\n": b"OK",
    b":-7\r\n": -7,
    b"$-1\r\n": None,
    b"*-1\r\n": None,
    b"*0\r\n": [],
    b"$0\r\n\r\n": b"",
    b"*2\r\n*2\r\n:1\r\n$2\r\n\r\n\r\n*3\r\n*0\r\n$-1\r\n+a b\r\n": [[1, b"\r\n"], [[], None, b"a b"]],
}


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_replies_of_every_kind_are_read_in_pieces_of_every_size(size: int) -> None:
    replies, read = Replies(), list[Any]()
    written = b"".join(REPLIES) + b"-MOVED 1 h:1\r\n"
    for at in range(0, len(written), size):
        read += replies.feed(written[at : at + size])
    error = read.pop()
    assert read == list(REPLIES.values())
    assert (type(error), str(error)) == (ServerError, "MOVED 1 h:1")
    assert not replies.is_torn


@pytest.mark.parametrize(
    "written",
    [
        b"HTTP/1.1 400\r\n",
        b"\r\n",
        b"$1_0\r\n",
        b"*-2\r\n",
        b":x\r\n",
        b"*1\r\n" * 9,
        b"$" + b"1" * 20 + b"\r\n",
        b"+" * 70_000,
    ],
)
def test_what_no_redis_sends_is_refused(written: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a|without|invalid literal"):
        Replies().feed(written)


TORN: Final = [
    [],
    [b"$4\r\nok"],
    [b"*2\r\n:1\r\n"],
    [b"$4x\r\nok 1\r\n"],
    [b"nonsense\r\n"],
    [text(b"ok") + text(b"unasked")],
    [text(b"ok") + b"$"],
]


@pytest.mark.parametrize("torn", TORN)
def test_an_answer_that_is_torn_or_none_leaves_the_outcome_unknown(torn: list[bytes]) -> None:
    with answering(torn) as connection, pytest.raises(OutcomeUnknown):
        asked(connection, b"one")


def test_a_server_that_is_silent_leaves_the_outcome_unknown() -> None:
    with (
        answering([], []) as connection,
        pytest.raises(OutcomeUnknown, match=r"no answer from Redis at .* within 0.05 s"),
    ):
        asked(connection, b"one", 0.05)


def test_a_connection_with_unsolicited_data_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering([text(b"ok")], [text(b"ok"), text(b"unasked")], []) as connection:
        assert asked(connection, b"one") == b"ok"
        assert connection.is_usable()
        assert asked(connection, b"two") == b"ok"
        seen = threading.Event()
        for _ in range(1000):
            if not connection.is_usable():
                break
            seen.wait(0.01)
        else:
            pytest.fail("it was taken for usable with an answer on it that nobody asked for")


def test_a_connection_that_ended_while_it_idled_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering([text(b"ok")]) as connection:
        assert asked(connection, b"one") == b"ok"
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
        pytest.param(PUBLISHED % (1, b"a") + b"xyz\r\n", "not a reply", id="something behind it"),
        pytest.param(b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$x\r\n", "not a size", id="of no size"),
        pytest.param(PUBLISHED % (9_000_000, b"x" * 2_000_000), "longer than any", id="too long"),
    ],
)
def test_what_is_no_message_to_the_channel_ends_the_listening(said: bytes, why: str) -> None:
    with answering([SUBSCRIBED], [said]) as connection:
        messages = Messages(connection, b"news", PATIENCE)
        assert messages.first == []
        connection.raw.send(b"go on")
        with pytest.raises((OSError, ValueError), match=why):
            heard(messages, 1)


def test_who_may_not_subscribe_is_told_so() -> None:
    with (
        answering([b"-NOPERM this user has no permissions\r\n"]) as connection,
        pytest.raises(StoreRefused, match="may not"),
    ):
        Messages(connection, b"news", PATIENCE)
