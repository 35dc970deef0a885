"""What a lock may be said to be, and the one line for what it may not."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from prefect_lockstead import LockSpec, locked
from prefect_lockstead.spec import place_of


def test_a_template_takes_the_values_of_the_call():
    spec = LockSpec(lock="gs://b/locks/{dist}-{number:03d}", purpose="publish {dist}")
    named = spec.named({"dist": "trixie", "number": 7})
    assert (named.lock, named.purpose) == ("gs://b/locks/trixie-007", "publish trixie")
    assert LockSpec(block="prod-{dist}").named({"dist": "apt"}).block == "prod-apt"


@pytest.mark.parametrize("value", ["a/b", "x?ttl=1s", "x#y", "../up", "50%", "{dist}", "a b&owner=me", "ü"])
def test_a_value_is_no_more_than_a_piece_of_the_key(value: str):
    named = LockSpec(lock="sqlite:///locks.db#{dist}?ttl=9s").named({"dist": value})
    assert place_of(named.lock or "") == ("sqlite:///locks.db", value)
    assert (named.lock or "").endswith("?ttl=9s")


def test_the_mode_may_be_a_template_and_is_checked_when_it_is_known():
    spec = LockSpec(lock="memory:x#apt", mode="{how}")
    assert spec.named({"how": "shared"}).settings == {"mode": "shared"}
    with pytest.raises(ValueError, match="mode must be 'exclusive' or 'shared', not 'write'"):
        spec.named({"how": "write"})


def test_what_is_named_is_no_template_any_more():
    named = LockSpec(block="{name}", purpose="{name}").named({"name": "{odd}"})
    assert named.named({}) is named
    assert (named.block, named.purpose, named.names) == ("{odd}", "{odd}", frozenset())


def test_a_brace_is_written_twice():
    assert LockSpec(block="b", purpose="{{x}} {y}").named({"y": 1}).purpose == "{x} 1"


def test_one_lock_is_one_place_however_it_is_written():
    assert place_of("gs://b/locks/apt?ttl=5m") == place_of("gs://b/locks#apt") == ("gs://b/locks", "apt")


def test_a_spec_can_be_pickled():
    spec = LockSpec(lock="sqlite:///x.db#{dist}", ttl="5m", labels={"team": "a"})
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_only_what_was_given_overrides_the_url():
    assert LockSpec(lock="sqlite:///x.db#apt?ttl=9s").settings == {}
    assert LockSpec(lock="sqlite:///x.db#apt", ttl="5m", labels={"a": "b"}).settings == {
        "ttl": 300.0,
        "labels": {"a": "b"},
    }


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({}, "name the lock once"),
        ({"lock": "memory:x#apt", "block": "prod"}, "name the lock once"),
        ({"lock": "nothing"}, "not a store URL"),
        ({"lock": "nix://x#{dist}"}, "no store has the scheme 'nix'"),
        ({"lock": "sqlite:///x.db"}, "names no key"),
        ({"lock": " "}, "lock is empty"),
        ({"lock": "memory:x#apt", "ttl": 0.5}, "ttl is 0.5 s; it must be at least 1 s"),
        ({"lock": "memory:x#{dist}", "ttl": 0.5}, "ttl is 0.5 s; it must be at least 1 s"),
        ({"lock": "memory:x#apt?ttl=8s&renew_every=7s"}, "renew more often"),
        ({"block": "prod", "ttl": 0.5}, "ttl is 0.5 s"),
        ({"block": "prod", "timeout": "soon"}, "timeout 'soon' is not a duration"),
        ({"block": "prod", "timeout": -1}, "timeout must be a finite, non-negative duration"),
        ({"block": "prod", "on_unclean": "ignore"}, "on_unclean must be 'warn' or 'fail', not 'ignore'"),
        ({"block": "prod", "mode": "Shared"}, "mode must be 'exclusive' or 'shared', not 'Shared'"),
        ({"block": "prod", "permits": 0}, "permits is 0; it must be at least 1"),
        ({"block": "prod", "permits": 3, "mode": "shared"}, "permits and mode exclude each other"),
        ({"block": "prod", "permits": 3, "mode": "{how}"}, "permits and mode exclude each other"),
        ({"lock": "memory:x#{dist}?mode=shared", "permits": 3}, "permits and mode='shared' exclude each other"),
        ({"block": "prod", "permits": 3, "on_unclean": "fail"}, "on_unclean='fail' is for locks"),
        ({"block": "prod", "waiting": "elsewhere"}, "waiting must be 'in_process' or 'reschedule'"),
        ({"lock": "memory:x#{dist"}, "not a valid template"),
        ({"lock": "memory:x#{}"}, "{} names nothing"),
        ({"lock": "memory:x#{0}"}, "{0} names nothing"),
        ({"lock": "memory:x#{a:{b}}"}, "may be no template itself"),
        ({"block": "b", "purpose": "{!}"}, "purpose='{!}'"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_declared(words: dict[str, Any], line: str):
    with pytest.raises(ValueError) as refused:
        LockSpec(**words)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("lock", "parameters", "line"),
    [
        ("memory:x#{dist}", {}, "names 'dist', which is not known here: no name is"),
        ("memory:x#{dist}", {"dist": ""}, "{dist} cannot be written: it is empty"),
        ("memory:x#{dist.name}", {"dist": 3}, "{dist.name} cannot be written"),
        ("memory:x#{dist:d}", {"dist": "apt"}, "{dist:d}"[:5]),
        ("memory:x#{dist}", {"dist": "\ud800"}, "{dist} cannot be written"),
        ("memory:x#{dist}", {"dist": "a\nb"}, "control or unprintable"),
        ("memory:x#{dist}", {"dist": "a" * 600}, "longer than 512 bytes"),
        ("sqlite:///{dist}/x.db#apt", {"dist": "../up"}, "stands in the store's name"),
        ("sqlite:///{dist}/x.db#apt", {"dist": ".."}, "stands in the store's name"),
        ("memory:x#apt?ttl={dist}", {"dist": "0.1"}, "ttl is 0.1 s"),
    ],
)
def test_a_value_that_makes_no_lock_is_refused_when_it_is_called(lock: str, parameters: dict[str, Any], line: str):
    with pytest.raises(ValueError) as refused:
        LockSpec(lock=lock).named(parameters)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "lock",
    [
        "redis://app:hunter2@host/0#apt",
        "redis://:hunter2@host/0#apt-{dist}",
        "redis://app:{password}@host/0#apt",
        "etcd://app:hunter2@one:2379,two:2379#apt",
        "postgresql://host/db?password=hunter2#apt",
        "postgresql://host/db#apt?password=hunter2",
        "postgresql://host/db?password={password}#apt",
        "postgresql://host/db?sslp%61ssword=hunter2#apt",
        "zookeeper://app:hunter2@host:2181/a@b#apt",
    ],
)
def test_a_password_in_the_url_is_refused_without_showing_it(lock: str):
    for declare in (lambda: LockSpec(lock=lock), lambda: locked(lock)):
        with pytest.raises(ValueError) as refused:
            declare()
        told = str(refused.value)
        assert told.startswith("the lock's URL has a password in it")
        assert "env:LOCK_STORE#apt" in told
        assert "hunter2" not in told
        assert "\n" not in told


def test_a_parameter_cannot_name_a_password_either():
    with pytest.raises(ValueError, match="has a password in it"):
        LockSpec(lock="postgresql://host/db#apt?{name}=hunter2").named({"name": "password"})


@pytest.mark.parametrize(
    "lock",
    [
        "env:LOCK_STORE#apt-{dist}",
        "file:/run/secrets/lock-store#apt?purpose={password}",
        "redis://app@host:6379/0#user:password@{dist}",
        "zookeeper://one:2181,[::1]:2181/locks@work#apt",
        "gs://bucket/a:b@c/apt",
    ],
)
def test_a_url_without_a_password_is_accepted(lock: str):
    assert LockSpec(lock=lock).lock == lock


def test_text_that_is_none_is_a_wrong_type():
    with pytest.raises(TypeError, match="lock must be text, not PosixPath"):
        LockSpec(lock=Path("locks.db"))  # type: ignore[arg-type]
