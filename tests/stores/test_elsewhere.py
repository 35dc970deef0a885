"""A store's URL that is kept in a file or a variable: read when it is opened, refused where others may read it."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from pathlib import Path

import pytest

import lockstead
from lockstead import urls
from lockstead.errors import StoreRefused
from lockstead.stores import url
from lockstead.values import LeaseTicket

SECRET = "redis://anna:hunter2@localhost:1/0"


def kept(where: Path, text: str, mode: int = 0o600) -> str:
    """Write a file; give the URL that names it."""
    path = where / "lock store"
    path.write_text(text)
    path.chmod(mode)
    return f"file:{where}/lock%20store"


def test_file_and_env_open_the_store_whose_url_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"sqlite:///{tmp_path}/locks.db"
    pointer = kept(tmp_path, f"{store}\n", 0o644)
    monkeypatch.setenv("LOCK_STORE", store)
    with (
        lockstead.connect(pointer) as client,
        lockstead.Lock(f"{pointer}?ttl=20s#apt").hold(),
        lockstead.Lock("env:LOCK_STORE#other").hold(),
        lockstead.connect(store) as plain,
    ):
        assert {held.key: held.ttl for held in client.list()} == {"apt": 20.0, "other": 300.0}
        assert {held.key for held in plain.list()} == {"apt", "other"}


def test_a_lock_is_named_where_the_file_is_not(tmp_path: Path) -> None:
    pointer = f"file://{tmp_path}/lock%20store"
    lock = lockstead.Lock(f"{pointer}#apt")
    urls.check_store(pointer)
    with pytest.raises(StoreRefused, match=f"{tmp_path}/lock store cannot be read: No such file"):
        lock.try_acquire()
    kept(tmp_path, f"sqlite:///{tmp_path}/locks.db")
    with pickle.loads(pickle.dumps(lock)).hold():
        assert lock.try_acquire() is None


def test_no_copy_of_a_lock_holds_the_password(tmp_path: Path) -> None:
    lock = lockstead.Lock(f"{kept(tmp_path, SECRET)}#apt")
    with pytest.raises(lockstead.StoreError):
        lock.try_acquire()
    assert b"hunter2" not in pickle.dumps(lock)


@pytest.mark.parametrize(
    ("text", "mode", "is_refused"),
    [
        (SECRET, 0o644, True),
        (SECRET, 0o604, True),
        (SECRET, 0o640, False),
        ("postgresql://host/db?password=hunter2", 0o644, True),
        ("redis://localhost:1/0", 0o644, False),
        ("postgresql://anna@host/db", 0o644, False),
        ("zk://ops:12345,hunter2@h:2181/p@q", 0o644, True),
        ("zk://ops:hunter2@h:2181/p@q", 0o644, True),
        ("zk://ops@h:2181,i:2181/p@q", 0o644, False),
        ("zk://h:2181,i:2181/p@q", 0o644, False),
    ],
)
def test_a_password_that_every_user_may_read_is_refused(tmp_path: Path, text: str, mode: int, is_refused: bool) -> None:
    pointer = kept(tmp_path, text, mode)
    if not is_refused:
        assert url.resolved(url.parse_store(pointer)).text == text
        return
    with pytest.raises(StoreRefused, match="holds a password and every user of this machine may read it: chmod o-r"):
        url.open_store(pointer)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has to hold the URL of a store"),
        ("root:hunter2:0:0\nanna:hunter2", "has to hold the URL of a store"),
        ("hunter2", "does not hold the URL of a store"),
        ("hunter2:x", "does not hold the URL of a store"),
        ("redis://h/0?ttl=%FFhunter2", "does not hold the URL of a store"),
        ("sqlite:///a.db#hunter2", "holds more than the URL of a store"),
        ("redis://h/0?ttl=hunter2", "holds more than the URL of a store"),
        ("env:OTHER", "holds env:, which cannot be kept there"),
        ("memory:hunter2", "holds memory:, which cannot be kept there"),
        ("sqlite:///" + "hunter2" * 3000, "has to hold the URL of a store"),
    ],
)
def test_what_else_a_file_holds_is_told_in_one_line_and_never_shown(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(StoreRefused) as told:
        url.open_store(kept(tmp_path, text))
    assert says in str(told.value)
    assert "hunter2" not in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "text", ["file:", "file:locks", "file://locks/store", "env:", "env:a-b", "env:A B", "file:/a%0Ab"]
)
def test_a_pointer_to_nothing_is_refused_where_it_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(file|env): names the (file|variable)"):
        url.parse_store(text)


@pytest.mark.parametrize("text", [None, "", " "])
def test_a_variable_that_is_missing_or_empty_is_told(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    if text is None:
        monkeypatch.delenv("LOCK_STORE_OF_NOBODY", raising=False)
    else:
        monkeypatch.setenv("LOCK_STORE_OF_NOBODY", text)
    with pytest.raises(StoreRefused, match="the variable LOCK_STORE_OF_NOBODY is not set, or empty"):
        url.open_store("env:LOCK_STORE_OF_NOBODY")


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_only_a_regular_file_is_read_and_no_pipe_is_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    with socket.socket(socket.AF_UNIX) as unix:
        {"pipe": os.mkfifo, "socket": lambda it: unix.bind(str(it)), "folder": Path.mkdir}[kind](path)
        told: list[StoreRefused] = []

        def opened() -> None:
            with pytest.raises(StoreRefused) as raised:
                url.open_store(f"file:{path}")
            told.append(raised.value)

        opening = threading.Thread(target=opened, daemon=True)
        opening.start()
        opening.join(30)
        assert told, "it waits for a writer"


def test_what_a_wrapper_asks_of_a_url_reads_no_file(tmp_path: Path) -> None:
    pointer = kept(tmp_path, SECRET, 0o644)
    urls.check_store(pointer)
    assert urls.is_elsewhere(pointer)
    with pytest.raises(ValueError, match="a store at file: has neither user nor password"):
        urls.with_user(pointer, "anna", "hunter2")
    ticket = LeaseTicket(store="redis:///etc/passwd", key="apt", holder="a/1", incarnation="1", ttl=30.0)
    assert urls.of_ticket(f"{pointer}#other", ticket) == f"{pointer}#apt", "a ticket chooses no file"


def test_the_traits_of_a_lock_are_those_of_the_store_that_is_meant(tmp_path: Path) -> None:
    lock = lockstead.Lock(f"{kept(tmp_path, 'redlock://a,b,c')}#apt")
    with pytest.raises(ValueError, match="redlock: cannot tell how a holder ended"):
        lock.require_unclean_detection()
