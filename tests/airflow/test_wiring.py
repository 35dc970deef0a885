"""How tasks hang on the acquire and the release of their group's lock; pure, without Airflow."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lockstead.spec import LockSpec, Section, check_keeper, check_templates
from airflow_lockstead.wiring import HEAVIEST, Node, Role, ancestors, idle_for, keeper_weights, plan, strangers

URL = "gs://bucket/locks#apt"
SPEC = LockSpec(lock=URL)
RULES = ("all_success", "all_done", "one_success", "one_failed", "none_failed", "all_skipped", "always")


def graph(*edges: str, roles: dict[str, Role] | None = None, **words: dict[str, object]) -> list[Node]:
    """Make nodes of "a>b" and "a"; words give a node's other fields by its name."""
    names = dict.fromkeys(name for edge in edges for name in edge.split(">"))
    pairs = [tuple(edge.split(">")) for edge in edges if ">" in edge]
    return [
        Node(
            name,
            upstream=frozenset(one for one, two in pairs if two == name),
            downstream=frozenset(two for one, two in pairs if one == name),
            role=(roles or {}).get(name, Role.MEMBER),
            **words.get(name, {}),  # type: ignore[arg-type]
        )
        for name in names
    ]


def last(*edges: str, **words: dict[str, object]) -> tuple[str, ...]:
    return plan("g", graph(*edges, **words), SPEC).last


# --- first and last ---------------------------------------------------------------------------------------------------


def test_acquire_is_upstream_of_the_first_tasks_only():
    nodes = [*graph("a>b", "c"), Node("d", upstream=frozenset({"outside"}))]
    assert plan("g", nodes, SPEC).first == ("a", "c", "d")


def test_release_hangs_on_the_end_of_a_line_alone():
    assert last("a>b", "b>c") == ("c",)


def test_release_hangs_on_all_that_stand_before_a_task_together():
    assert last("a>b", "a>c", "b>d", "c>d") == ("b", "c", "d")


@pytest.mark.parametrize("rule", ["all_done", "all_done_setup_success", "all_done_min_one_success"])
def test_a_task_that_waits_for_all_stands_for_all(rule: str):
    assert last("a>d", "b>d", d={"trigger_rule": rule}) == ("d",)


def test_a_task_that_runs_always_stands_for_nobody():
    assert last("a>b", b={"trigger_rule": "always"}) == ("a", "b")


def test_a_task_after_mapped_ones_does_not_prove_all_are_done():
    assert last("a>b", a={"is_mapped": True}) == ("a", "b")
    assert last("a>b", a={"mapped_in": ("g.m",)}) == ("a", "b")
    assert last("a>b", a={"mapped_in": ("g.m",)}, b={"mapped_in": ("g.m",)}) == ("b",)
    assert last("a>b", a={"mapped_in": ("g.m",)}, b={"mapped_in": ("g.n",)}) == ("a", "b")
    assert last("a>b", b={"mapped_in": ("g.m",)}) == ("b",)
    assert last("a>b", a={"is_mapped": True}, b={"trigger_rule": "all_done"}) == ("b",)


def test_a_task_waiting_for_an_outside_task_proves_no_others():
    a, b = graph("a>b")
    assert plan("g", [a, Node("b", upstream=b.upstream | {"outside"})], SPEC).last == ("a", "b")


def test_release_waits_for_an_inner_release_but_not_its_keeper():
    roles = {"in.acquire": Role.LOCK, "in.release": Role.LOCK, "in.keep": Role.KEEPER}
    within = graph("in.acquire>a", "a>in.release", "in.acquire>in.release", "in.acquire>in.keep", roles=roles)
    nodes = [
        Node(**{**_fields(one), "trigger_rule": "all_done"}) if one.task_id == "in.release" else one for one in within
    ]
    made = plan("g", nodes, SPEC)
    assert made.first == ("in.acquire",)
    assert made.last == ("in.release",)
    assert made.upstream == {"a": ()}


def _fields(node: Node) -> dict[str, object]:
    return {name: getattr(node, name) for name in Node.__dataclass_fields__}


@st.composite
def groups(draw: st.DrawFn) -> list[Node]:
    """Any acyclic group of up to seven tasks."""
    size = draw(st.integers(1, 7))
    pairs = [pair for pair in itertools.combinations(range(size), 2) if draw(st.booleans())]
    mapped = [draw(st.booleans()) for _ in range(size)]
    rules = [draw(st.sampled_from(RULES)) if any(two == one for _, two in pairs) else RULES[0] for one in range(size)]
    return [
        Node(
            str(one),
            upstream=frozenset(str(a) for a, b in pairs if b == one),
            downstream=frozenset(str(b) for a, b in pairs if a == one),
            trigger_rule=rules[one],
            is_mapped=mapped[one],
        )
        for one in range(size)
    ]


@given(groups(), st.data())
def test_release_never_starts_while_a_task_of_the_group_can_run(nodes: list[Node], data: st.DataObject):
    """Play any order in which Airflow may decide the tasks: a task is decided early whenever its rule allows it."""
    made = plan("g", nodes, SPEC)
    undecided = {node.task_id: node for node in nodes}
    while any(name in undecided for name in made.last):
        ready = [
            name
            for name, node in undecided.items()
            if not node.upstream & set(undecided)
            or (
                node.trigger_rule == "always"
                or (node.trigger_rule != "all_done" and _may_be_decided(node, nodes, undecided))
            )
        ]
        del undecided[data.draw(st.sampled_from(sorted(ready)))]
    assert undecided == {}


def _may_be_decided(node: Node, nodes: list[Node], undecided: dict[str, Node]) -> bool:
    """Return whether one task before it is over, or one instance of a mapped one may be."""
    by_name = {one.task_id: one for one in nodes}
    return any(
        name not in undecided or (by_name[name].is_mapped and not by_name[name].upstream & set(undecided))
        for name in node.upstream
    )


# --- sections ---------------------------------------------------------------------------------------------------------


def test_a_member_knows_its_direct_upstream_members_only():
    nodes = [*graph("a>b", "c>b", "b>d"), Node("e", upstream=frozenset({"outside", "a"}))]
    made = plan("g", nodes, SPEC).upstream
    assert made == {"a": (), "b": ("a", "c"), "c": (), "d": ("b",), "e": ("a",)}


def test_a_section_is_frozen_and_single_ones_have_no_ids():
    section = Section(SPEC, single=True)
    assert (section.group_id, section.acquire_id, section.release_id, section.upstream) == ("", "", "", ())
    with pytest.raises(AttributeError):
        section.single = False  # type: ignore[misc]


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_a_group_without_a_member_is_refused():
    for nodes in ([], graph("x", roles={"x": Role.LOCK})):
        with pytest.raises(ValueError, match="it has no task"):
            plan("g", nodes, SPEC)


def test_a_first_task_with_another_rule_is_refused_by_name():
    with pytest.raises(ValueError, match=r"its first task 'a' has the trigger rule 'one_failed'"):
        plan("g", graph("a>b", a={"trigger_rule": "one_failed"}), SPEC)
    plan("g", graph("a>b", b={"trigger_rule": "one_failed"}), SPEC)
    plan("g", graph("a", a={"trigger_rule": "all_done_setup_success", "is_teardown": True}), SPEC)


def test_a_late_retry_is_warned_of_where_nobody_keeps_the_lease():
    def warnings(ttl: float, *, keeper: bool, retries: int = 1, delay: float = 300.0) -> tuple[str, ...]:
        nodes = graph("a", a={"retries": retries, "retry_delay": delay})
        return plan("g", nodes, LockSpec(lock=URL, ttl=ttl, keeper=keeper)).warnings

    assert len(warnings(299, keeper=False)) == 1
    assert "'a' is retried after 300 s" in warnings(299, keeper=False)[0]
    assert warnings(300, keeper=False) == ()
    assert warnings(299, keeper=True) == ()
    assert warnings(299, keeper=False, retries=0) == ()


def test_a_wait_that_acquire_does_not_share_leaves_the_lock_idle():
    nodes = [*graph("a>b"), Node("c", upstream=frozenset({"a", "far", "near"}))]
    edges = {"acquire": frozenset({"near"}), "near": frozenset({"nearer"}), "c": frozenset({"a", "far", "near"})}
    assert idle_for(nodes, "acquire", edges) == {"c": ("far",)}
    assert idle_for(nodes, "acquire", {**edges, "near": frozenset({"far"})}) == {}
    assert idle_for(graph("a>b"), "acquire", {}) == {}


def test_ancestors_are_all_that_stand_before_also_in_a_circle():
    assert ancestors("c", {"c": frozenset({"b"}), "b": frozenset({"a", "c"})}) == {"a", "b", "c"}


def test_strangers_are_those_that_came_later():
    assert strangers(frozenset({"a", "b"}), ["a", "c", "b"]) == ["c"]


# --- what a DAG says of a lock ----------------------------------------------------------------------------------------


def test_a_key_is_looked_for_in_the_default_connection():
    assert LockSpec(key="apt").conn_id == "lockstead_default"
    assert LockSpec(key="apt", conn_id="other").conn_id == "other"
    assert LockSpec(lock=URL).conn_id is None


def test_a_keeper_needs_a_long_enough_ttl():
    for words in ({"lock": URL, "ttl": 89.9}, {"lock": f"{URL}?ttl=89"}, {"key": "apt", "ttl": "1m"}):
        with pytest.raises(ValueError, match="with a keeper it must be at least 90 s"):
            check_keeper(LockSpec(**words), 90)  # type: ignore[arg-type]
        check_keeper(LockSpec(**words, keeper=False), 90)  # type: ignore[arg-type]
        check_keeper(LockSpec(**words), 10)  # type: ignore[arg-type]
    check_keeper(LockSpec(lock=URL, ttl=90), 90)
    check_keeper(LockSpec(lock=f"{URL}?ttl=89", ttl=90), 90)


def test_settings_are_only_what_was_given():
    assert LockSpec(lock=URL).settings == {}
    given_ = LockSpec(lock=URL, ttl="5m", purpose="publish", expected=60, labels={"team": "a"}).settings
    assert given_ == {"ttl": 300.0, "purpose": "publish", "expected": 60.0, "labels": {"team": "a"}}


def test_templates_are_found_by_the_name_that_their_author_gave():
    spec = LockSpec(key="apt-{{ ds }}", conn_id="{{ c }}", purpose="{% if x %}{% endif %}")
    assert set(spec.templates) == {"key", "lockstead_conn_id", "purpose"}
    assert LockSpec(lock=URL).templates == {}


def test_no_environment_is_made_where_there_is_no_template():
    def refuse() -> object:
        raise AssertionError

    check_templates(LockSpec(lock=URL), refuse)


def test_a_template_of_a_url_is_not_taken_for_a_url():
    assert LockSpec(lock="{{ var.value.lock }}").believed_ttl == 300.0
    assert LockSpec(lock="memory{{ x }}", ttl=120).believed_ttl == 120.0


@pytest.mark.parametrize(
    "lock",
    [
        "redis://user:hunter2@h/0#apt",
        "redis://:hunter2@h#apt",
        "redis://:hun/ter2@h/0#apt",
        "rediss://user:hunter2@[::1]:6379/0#apt",
        "postgresql://h/db?password=hunter2#apt",
        "postgresql://h/db#apt?sslpassword=hunter2",
        "redis://user:{{ var.value['a/b'] }}@h/0#apt",
    ],
)
def test_a_url_with_a_password_is_refused_and_not_shown(lock: str):
    with pytest.raises(ValueError, match="lock= has a password in it") as raised:
        LockSpec(lock=lock)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "lock",
    [
        "redis://user@h/0#apt",
        "redis://[::1]:6379/0#a:b@c",
        "gs://b/l#a:b@c?purpose=password=none",
        "zk://h:2181/path@x#k",
        "sqlite:////a/b:c@d.db#k",
        "redis://{{ conn.r.host }}:6379/0#apt",
    ],
)
def test_what_only_looks_like_a_password_is_a_url(lock: str):
    assert LockSpec(lock=lock).lock == lock


def test_a_password_inserted_by_a_template_is_refused():
    spec = LockSpec(lock="{{ var.value.lock }}")
    with pytest.raises(ValueError, match="lock= has a password in it") as raised:
        spec.named({"lock": "redis://user:hunter2@h/0#apt"})
    assert "hunter2" not in str(raised.value)


# --- what is queued first ---------------------------------------------------------------------------------------------


@given(
    st.integers(1, 12).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.tuples(*[st.integers(0, size)] * 2))))
)
def test_a_keeper_outweighs_all_tasks_after_its_acquire(
    drawn: tuple[int, set[tuple[int, int]]],
):
    size, edges = drawn
    names = [f"t{number}" for number in range(size + 1)]
    downstream = {name: {names[two] for one, two in edges if one < two and names[one] == name} for name in names}
    keepers = {f"{name}.keep": name for name in names[::3]}
    weights = {name: 1 + number % 3 for number, name in enumerate(names)}
    found = keeper_weights(weights, downstream, keepers)
    everything = weights | found
    for keeper_id, acquire_id in keepers.items():
        downstream[acquire_id] = downstream[acquire_id] | {keeper_id}
        downstream[keeper_id] = set()
    for keeper_id, acquire_id in keepers.items():
        for member in ancestors(acquire_id, downstream) - {keeper_id}:
            total = sum(everything[name] for name in {member, *ancestors(member, downstream)})
            assert total < found[keeper_id] or found[keeper_id] == HEAVIEST


def test_a_keeper_weighs_one_more_than_the_tasks_after_its_acquire():
    assert keeper_weights({"a": 5}, {"acquire": {"a"}, "a": set()}, {"keep": "acquire"}) == {"keep": 6}


def test_a_long_chain_of_groups_has_a_valid_keeper_weight():
    names = [f"g{number}" for number in range(200)]
    downstream = {one: {two} for one, two in itertools.pairwise(names)} | {names[-1]: set()}
    found = keeper_weights(dict.fromkeys(names, 1), downstream, {f"{name}.keep": name for name in names})
    assert sum(found.values()) < 2**31
