"""What a store URL means, and what is never shown of it."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path
from unicodedata import is_normalized

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstead.errors import StoreRefused
from lockstead.stores import url
from lockstead.stores.memory import MemoryStore
from lockstead.testing.conformance.names import ODD_KEYS
from lockstead.urls import handed_on, lock_url
from lockstead.values import checked_key
from tests.inventory import STORES


@pytest.mark.parametrize(
    ("text", "store", "key", "options"),
    [
        ("memory:#apt", "memory:", "apt", {}),
        ("memory:name#apt", "memory:name", "apt", {}),
        ("MEMORY:name#apt", "memory:name", "apt", {}),
        ("sqlite:///locks.db#apt", "sqlite:///locks.db", "apt", {}),
        ("sqlite:////var/locks.db#apt", "sqlite:////var/locks.db", "apt", {}),
        ("sqlite:///locks.db?ttl=5m#apt", "sqlite:///locks.db", "apt", {"ttl": "5m"}),
        ("sqlite:///locks.db#apt?ttl=5m&owner=me", "sqlite:///locks.db", "apt", {"ttl": "5m", "owner": "me"}),
        ("sqlite:///locks.db?ttl=5m#apt?owner=me", "sqlite:///locks.db", "apt", {"ttl": "5m", "owner": "me"}),
        ("gs://bucket/prefix/key", "gs://bucket/prefix", "key", {}),
        ("gs://bucket/a/b/key?ttl=5m", "gs://bucket/a/b", "key", {"ttl": "5m"}),
        ("gs://bucket/key", "gs://bucket", "key", {}),
        ("gs://bucket/prefix#a/b", "gs://bucket/prefix", "a/b", {}),
        ("gs://bucket#key", "gs://bucket", "key", {}),
        ("memory:#a%3Fb%23c%25", "memory:", "a?b#c%", {}),
        ("memory:#a#b", "memory:", "a#b", {}),
        ("memory:#gr%C3%BCn", "memory:", "grün", {}),
        (
            "memory:#apt?owner=run%2F2024-01-01T00:00:00+00:00",
            "memory:",
            "apt",
            {"owner": "run/2024-01-01T00:00:00+00:00"},
        ),
        ("memory:#apt?purpose=", "memory:", "apt", {"purpose": ""}),
    ],
)
def test_a_lock_url_is_a_store_a_key_and_settings(text: str, store: str, key: str, options: dict[str, str]) -> None:
    parsed = url.parse_lock(text)
    assert (parsed.text, parsed.key, parsed.options) == (store, key, options)


@pytest.mark.parametrize("text", ["gs://bucket/a/b", "gs://bucket/a/b?ttl=5m", "memory:", "sqlite:///locks.db"])
def test_a_store_url_names_a_key_only_by_a_fragment(text: str) -> None:
    assert url.parse_store(text).key is None
    assert url.parse_store(text).text == text.partition("?")[0]
    assert url.parse_store(f"{text.partition('?')[0]}#apt").key == "apt"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("apt", "has no scheme"),
        ("//host/apt", "has no scheme"),
        ("nosuch://host#apt", f"'nosuch'; known: {', '.join(sorted({*url.OURS, 'env', 'file'}))}"),
        ("postgres+ssl://host#apt", "'postgres+ssl', did you mean 'postgresql:'?; known: "),
        ("memory:", "names no key; write the lock's name after '#', as in 'memory:#apt'"),
        ("memory:#", "names no key; write the lock's name after '#', as in 'memory:#apt'"),
        ("gs://bucket", "names no key; write the lock's name after '#', as in 'gs://bucket#apt'"),
        ("gs://bucket/locks/", "names no key; write the lock's name after '#', as in 'gs://bucket/locks#apt'"),
        ("gs://b!/", "names no key; write the lock's name after '#', as in 'gs:...#apt'"),
        ("redis://anna:hunter2@host/0", "names no key; write the lock's name after '#', as in 'redis://host/0#apt'"),
        ("memory:#apt?ttl", "?name=value"),
        ("memory:#apt?a-b=1", "?name=value"),
        ("memory:?ttl=1#apt?ttl=2", "'ttl' twice"),
        ("memory:#%FF", "not UTF-8"),
        ("memory:#a%00b", "control"),
        ("memory:#" + "a" * 513, "longer than 512"),
    ],
)
def test_what_is_no_lock_url_is_told_in_one_line(text: str, says: str) -> None:
    with pytest.raises(ValueError) as told:
        url.parse_lock(text)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_zookeeper_is_another_word_for_zk() -> None:
    assert url.parse_lock("ZooKeeper://host/locks#apt") == url.parse_lock("zk://host/locks#apt")


def test_a_url_is_text() -> None:
    with pytest.raises(TypeError, match="is text, not"):
        url.parse_lock(Path("locks.db"))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [key for key in ODD_KEYS if is_normalized("NFC", key)])
def test_h23_every_key_can_be_written_in_a_url(key: str) -> None:
    written = lock_url("sqlite:////var/locks.db", key)
    assert written.isascii()
    parsed = url.parse_lock(f"{written}?ttl=5m")
    assert (parsed.text, parsed.key, parsed.options) == ("sqlite:////var/locks.db", key, {"ttl": "5m"})


@given(st.text(min_size=1, max_size=40))
def test_h23_any_key_comes_back_from_a_url(key: str) -> None:
    try:
        checked_key(key)
    except ValueError:
        return
    assert url.parse_lock(lock_url("memory:", key)).key == key


@pytest.mark.parametrize(
    "text",
    [
        "gs://me:s3cret@bucket/locks#apt",
        "nosuch://me:s3cret@host#apt",
        "//me:s3cret@host",
        "sqlite://me:s3cret@host/locks.db#apt",
        "memory://me:s3cret@host",
        "gs://bucket/locks?s3cret",
    ],
)
def test_h22_no_error_repeats_a_url(text: str) -> None:
    try:
        url.open_store(url.parse_lock(text))
    except ValueError:
        assert "s3cret" not in traceback.format_exc().partition("Error: ")[2]
    else:
        raise AssertionError("it was opened")


def test_h22_a_parsed_url_does_not_show_its_text() -> None:
    assert "bucket" not in repr(url.parse_lock("gs://bucket/locks#apt"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("memory:name", "memory:name"),
        ("sqlite:////var/a b/l%3Focks.db", "sqlite:////var/a%20b/l%3Focks.db"),
        ("gs://bucket/a b/%23/", "gs://bucket/a%20b/%23"),
    ],
)
def test_a_printed_store_url_opens_the_same_store(text: str, shown: str) -> None:
    assert url.printable(text) == shown
    assert url.printable(shown) == shown


def test_a_relative_file_is_printed_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert url.printable("sqlite:///locks.db") == f"sqlite:///{tmp_path}/locks.db"
    store = url.open_store("sqlite:///locks.db")
    assert store.url == f"sqlite:///{tmp_path}/locks.db"
    store.close()


def test_a_client_is_refused_by_stores_that_take_none() -> None:
    for text in ("memory:", "sqlite:///locks.db"):
        with pytest.raises(TypeError, match="accepts no client"):
            url.open_store(text, object())
    with pytest.raises(TypeError, match=r"google\.cloud\.storage\.Client"):
        url.open_store("gs://bucket/locks", object())


def test_stores_of_others_are_found_by_their_entry_point(tmp_path: Path) -> None:
    """In a process of its own, since entry points are read once a process."""
    (tmp_path / "theirs.py").write_text(
        "from lockstead.stores.memory.url import _Opener\nfrom lockstead.stores.memory import MemoryStore\n"
        "class Theirs(_Opener):\n"
        "    takes_user = True\n"
        "    def open(self, store_url, client):\n"
        "        return MemoryStore(name='theirs')\n"
        "OPENER = Theirs()\n"
    )
    installed = tmp_path / "theirs-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(
        "[lockstead.stores]\ntheirs = theirs:OPENER\nbroken = nosuchmodule:OPENER\ntwice = theirs:OPENER\n"
    )
    other = tmp_path / "other-1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (other / "entry_points.txt").write_text("[lockstead.stores]\ntwice = other:OPENER\n")
    said = run_apart(
        "from lockstead.stores import url\n"
        "from lockstead.urls import with_user\n"
        "print(url.open_store('theirs://host').url)\n"
        "print(with_user('theirs://host', 'me', 'secret'))\n"
        "for text in ('broken://host', 'twice://host', 'nosuch://host'):\n"
        "    try: url.open_store(text)\n"
        "    except Exception as error: print(type(error).__name__, error)\n",
        tmp_path,
    )
    assert said[:2] == ["memory:theirs", "theirs://me:secret@host"]
    assert said[2].startswith("StoreRefused the store 'broken' cannot be loaded from 'nosuchmodule:OPENER'")
    assert said[3] == "ValueError several stores claim the scheme 'twice': other:OPENER, theirs:OPENER; uninstall one"
    known = ", ".join(sorted({*url.OURS, "env", "file", "broken", "theirs", "twice"}))
    assert said[4] == f"ValueError no store has the scheme 'nosuch'; known: {known}"


def test_naming_a_lock_imports_no_client_library() -> None:
    said = run_apart(
        "import sys\n"
        "from lockstead.stores import url\n"
        "for text in ('gs://b/locks#apt', 'memory:#apt'):\n"
        "    url.parse_lock(text), url.printable(url.parse_lock(text))\n"
        "print(sorted({'httpcore', 'google.auth', 'google.cloud.storage', 'pendulum', 'sqlite3'} & set(sys.modules)))\n"
    )
    assert said == ["[]"]


@pytest.mark.parametrize("missing", ["httpcore", "google.auth"])
def test_a_missing_client_library_is_named_with_what_to_type(missing: str) -> None:
    said = run_apart(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from lockstead.stores import url\n"
        "url.parse_lock('gs://bucket/locks#apt')\n"
        "try: url.open_store('gs://bucket/locks')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    assert said == ["StoreRefused the Cloud Storage store needs its client libraries: pip install 'lockstead[gcs]'"]


def test_one_url_is_one_memory_and_no_url_is_a_memory_of_its_own() -> None:
    from lockstead.protocol.commands import Create, Read, Snapshot
    from lockstead.values import Name

    one, same, other = (url.open_store(f"memory:{name}") for name in ("test-url-1", "test-url-1", "test-url-2"))
    assert isinstance(one.perform(Create(Name("apt"), {}), 1.0), Snapshot)
    one.close()
    assert isinstance(same.perform(Read(Name("apt")), 1.0), Snapshot)
    for stranger in (other, MemoryStore()):
        assert not isinstance(stranger.perform(Read(Name("apt")), 1.0), Snapshot)


def run_apart(script: str, *paths: Path) -> list[str]:
    """Run a script in a process of its own and return the lines that it printed."""
    import os

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment.pop("STORAGE_EMULATOR_HOST", None)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_store_of_another_folder_than_there_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match=f"there is no folder {tmp_path}/nosuch; create it"):
        url.open_store(f"sqlite:///{tmp_path}/nosuch/locks.db")


@pytest.mark.parametrize(
    ("text", "handed"),
    [
        ("postgresql://anna:s3cret@h:1/db?schema=locks#apt", "postgresql://anna@h:1/db?schema=locks"),
        ("redis://:s3cret@h/0#apt", "redis://h/0"),
        ("etcd://anna:s3cret@h1:1,h2:1/pre#apt", "etcd://anna@h1:1,h2:1/pre"),
        ("redis://h/0#apt", "redis://h/0"),
        ("env:LOCK_STORE#apt", "env:LOCK_STORE"),
    ],
)
def test_a_process_that_is_started_is_told_the_user_and_no_password(text: str, handed: str) -> None:
    assert handed_on(url.parse_lock(text)) == handed


OPENED = """
import sys
from lockstead.stores import url
for text in sys.argv[1:]:
    print(url.open_store(text).url.partition(":")[0])
print(*(name for name in sys.modules if name.endswith((".doctor", ".examination"))))
"""


def test_an_opened_store_has_not_imported_its_diagnosis(tmp_path: Path) -> None:
    texts = [known.url.format(who="", port=1).replace("/nowhere", str(tmp_path)) for known in STORES.values()]
    told = {**os.environ, "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}
    shown = subprocess.run(
        [sys.executable, "-c", OPENED, *texts], env=told, capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.splitlines() == [*STORES, ""]
