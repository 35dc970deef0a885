"""Where HTTP is served, and who may ask."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lockstead.monitor.listening import UNREAD_MS, Address, is_bearer, read_token


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80, True),
        ("127.3.2.1:0", "127.3.2.1", 0, True),
        ("[::1]:65535", "::1", 65535, True),
        ("localhost:1", "localhost", 1, True),
        ("0.0.0.0:80", "0.0.0.0", 80, False),
        ("[::]:80", "::", 80, False),
        ("localhost.example:1", "localhost.example", 1, False),
    ],
)
def test_an_address_says_whether_only_this_machine_reaches_it(
    text: str, host: str, port: int, is_loopback: bool
) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, address.is_loopback, str(address)) == (host, port, is_loopback, text)


@pytest.mark.parametrize(
    "text", ["", ":", "80", ":80", "host", "host:", "host:x", "host:65536", "::1:80", "host:-1", "host:１", "a\n:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^an address is HOST:PORT"):
        Address.parse(text)


def test_a_port_in_use_is_one_line() -> None:
    with Address("127.0.0.1", 0).bind() as bound:
        taken = Address("127.0.0.1", bound.getsockname()[1])
        with pytest.raises(ValueError, match=rf"^cannot listen at {taken}: Address already in use; choose another"):
            taken.bind()
    for host in ("no-such-host.invalid", "x" * 70 + ".invalid"):
        with pytest.raises(ValueError, match=rf"^cannot listen at {host}:1: the host cannot be resolved"):
            Address(host, 1).bind()


def test_a_token_file_must_be_private_and_hold_a_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_token(str(file))
    file.write_text("0123456789abcdef\n")
    file.chmod(0o640)
    with pytest.raises(ValueError, match="is open to other users: chmod 600"):
        read_token(str(file))
    file.chmod(0o600)
    assert read_token(str(file)) == "0123456789abcdef"
    for text in ("", "short", "two words of a token", "x" * 2000, "x" * 16 + "é"):
        file.write_text(text)
        with pytest.raises(ValueError, match="needs one line of 16 to 1024"):
            read_token(str(file))


def test_only_the_whole_token_is_the_bearers() -> None:
    assert is_bearer("Bearer secret-of-sixteen", "secret-of-sixteen")
    assert is_bearer("bearer  secret-of-sixteen", "secret-of-sixteen")
    for header in (None, "", "Bearer", "Bearer ", "Basic secret-of-sixteen", "Bearer secret-of-sixtee", "Bearer é"):
        assert not is_bearer(header, "secret-of-sixteen")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT, of Linux")
def test_a_connection_whose_client_reads_nothing_is_cut_by_the_kernel() -> None:
    with Address.parse("127.0.0.1:0").bind() as bound:
        bound.setblocking(True)
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_MS
