"""What becomes of each way to end, who is waited for, and what travels between tasks: tables and text, no Airflow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_lockstead.grants import MARK, Grant, failure, granted, unclean_of
from airflow_lockstead.names import Attempt, log_of
from airflow_lockstead.outcomes import Becomes, Kind, Leaving, becomes, leaving
from lockstead import LeaseOutcome, LeaseTicket, NotAcquired, OutcomeUnknown, PreviousLease, StoreRefused
from lockstead.unclean import last

ME = Attempt("dag", "run", "g.work", 3, 2)
TICKET = LeaseTicket("sqlite:///locks.db", "apt", "airflow:dag/run/g/-1/ab", "7", 60.0)


@pytest.mark.parametrize("kind", Kind)
def test_every_end_without_the_lease_is_lease_lost(kind: Kind):
    assert becomes(kind, is_held=False) is Becomes.LEASE_LOST
    assert becomes(kind, is_held=True) is Becomes.ITSELF


@pytest.mark.parametrize("kind", Kind)
def test_the_table_says_how_each_end_of_a_body_leaves_the_lease(kind: Kind):
    comes_back = kind in (Kind.DEFERRED, Kind.RESCHEDULED)
    assert leaving(kind, is_single=False) is Leaving.WITHDRAW
    assert leaving(kind, is_single=True) is (Leaving.HAND_ON if comes_back else Leaving.GIVE_BACK)


def test_an_acquirers_name_is_the_same_for_all_tries():
    again = Attempt("dag", "run", "g.work", 3, 3)
    assert ME.acquirer("g") == again.acquirer("g") == "airflow:dag/run/g/3"
    assert ME.member == "airflow:dag/run/g.work/3/2" != again.member


@pytest.mark.parametrize(
    ("owner", "is_before"),
    [
        ("airflow:dag/run/g.work/3/1", True),  # an earlier try
        ("airflow:dag/run/g.work/3/2", False),  # this one
        ("airflow:dag/run/g.work/33/1", False),  # another index of this task
        ("airflow:dag/run/g.first/1", True),  # directly upstream
        ("airflow:dag/run/g.first/5/1", True),  # any index of it
        ("airflow:dag/run/g.first2/1", False),  # only named alike
        ("airflow:dag/run2/g.first/1", False),  # of another run
        ("airflow:dag/run/g.other/1", False),  # beside this one
        ("somebody", False),
    ],
)
def test_a_body_waits_for_direct_upstreams_and_its_earlier_tries(owner: str, is_before: bool):
    assert ME.works_before(["g.first"])(owner) is is_before


def test_an_unmapped_tasks_name_has_no_index():
    first, second = (Attempt("dag", "run", "t", -1, number) for number in (1, 2))
    assert (first.acquirer("t"), first.acquirer("g")) == ("airflow:dag/run/t", "airflow:dag/run/g")
    assert first.member == "airflow:dag/run/t/1"
    assert second.works_before([])(first.member)
    assert not second.works_before([])("airflow:dag/run/t2/1")


def test_a_mapped_tasks_name_has_its_index_from_zero_on():
    assert Attempt("dag", "run", "t", 0, 1).member == "airflow:dag/run/t/0/1"
    found = {"dag_id": "dag", "run_id": "run", "task_id": "t", "try_number": 1}
    assert Attempt.of(SimpleNamespace(**found, map_index=3)).map_index == 3
    # as Airflow 3 may have it for a task that is not mapped
    assert Attempt.of(SimpleNamespace(**found, map_index=None)).map_index == -1


def test_an_owner_is_printable_whatever_a_run_is_called():
    assert Attempt("dag", "a\nb", "t", -1, 1).member == "airflow:dag/a?b/t/1"


def test_a_grant_is_read_back_from_an_xcom_and_an_event():
    grant = granted(TICKET, 7, 1.5, None)
    assert Grant.read(grant.event) == grant
    assert Grant.read(grant.xcom).ticket == grant.ticket
    assert grant.xcom == {"ticket": str(TICKET), "token": 7, "key": "apt", "holder": TICKET.holder}
    with pytest.raises(ValueError, match="not what acquire returns"):
        Grant.read({"ticket": "x"})


def test_a_grant_without_a_token_is_shown_and_read_back():
    grant = granted(TICKET, None, -1.0, None)
    assert str(grant) == "acquired 'apt' with no token after 0.0 s"
    assert Grant.read(grant.xcom) == Grant(str(TICKET), None, "apt", TICKET.holder) == grant
    assert str(granted(TICKET, 7, 1.5, None)) == "acquired 'apt' with token 7 after 1.5 s"
    assert Grant.read(granted(TICKET, 7, 1.5, "who died").event).unclean == "who died"


@pytest.mark.parametrize(
    ("owner", "progress", "unclean"),
    [
        ("me", f"{MARK}who died", "who died"),
        ("me", "who died", None),  # a progress of the task code's
        ("me", None, None),
        ("them", f"{MARK}who died", None),
    ],
)
def test_a_retry_reads_the_note_of_its_own_earlier_try(owner: str, progress: str | None, unclean: str | None):
    earlier: Any = SimpleNamespace(owner=owner, progress=progress)
    assert unclean_of(None, "me", earlier) == unclean


@pytest.mark.parametrize(
    ("ending", "is_unclean"), [(one, one in (LeaseOutcome.EXPIRED, LeaseOutcome.REVOKED)) for one in LeaseOutcome]
)
def test_a_grant_names_the_previous_holder_after_an_unclean_end(ending: LeaseOutcome, is_unclean: bool):
    grant = granted(TICKET, 7, 0.0, unclean_of(last("apt", PreviousLease(ending, "them"), "me"), "me", None))
    assert grant.unclean == (f"the lease of 'them' on 'apt' ended {ending.value}" if is_unclean else None)
    assert unclean_of(last("apt", PreviousLease(ending, "me"), "me"), "me", None) is None


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (NotAcquired("held"), "not acquired"),
        (StoreRefused("forbidden"), "refused"),
        (ValueError("no URL"), "refused"),
        (OutcomeUnknown("silent"), "failed"),
    ],
)
def test_an_event_says_whether_a_retry_could_mend_it(error: Exception, state: str):
    assert failure(error) == {"state": state, "message": str(error)}


def test_the_link_leads_to_the_log_of_who_acquires():
    assert log_of("d", "r 1", "g.acquire", -1, is_new=True) == "/dags/d/runs/r%201/tasks/g.acquire"
    assert log_of("d", "r", "a", 4, is_new=True) == "/dags/d/runs/r/tasks/a/mapped/4"
    assert log_of("d/e", "r", "a", 0, is_new=True) == "/dags/d%2Fe/runs/r/tasks/a/mapped/0"
    assert log_of("d", "r", "a", -1, is_new=False) == "/dags/d/grid?dag_run_id=r&task_id=a&tab=logs"
    assert log_of("d", "r", "a", 4, is_new=False) == "/dags/d/grid?dag_run_id=r&task_id=a&map_index=4&tab=logs"
