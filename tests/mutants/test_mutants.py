"""The mutants that are made are of every kind, and a small sample of them dies; `make mutants` runs the others."""

from __future__ import annotations

import ast
import tomllib

import pytest

from tests.mutants.__main__ import SURVIVORS, chosen, files, judged
from tests.mutants.killing import Mutant, of_file, path_of, tried
from tests.mutants.making import mutated, mutations

SAMPLED = ("protocol/expiry.py", "protocol/lifecycle.py", "protocol/members.py", "renewal.py")

SOURCE = '''
def f(a, b, *, c=3):
    """Say nothing."""
    if a < b and not c:
        raise ValueError(f"{a + 1}")
    while a is None:
        break
    match b:
        case 1:
            a.d = min(a, b)
        case _:
            g(a, b=True, c=b)
    return [one for one in a if one] if b else c - 1
'''


def test_every_branch_comparison_constant_and_call_is_changed() -> None:
    assert [mutation.name.removeprefix("f: ") for mutation in mutations(SOURCE)] == [
        "3 -> 4",
        "if a < b and (not c): ... -> if True",
        "if a < b and (not c): ... -> if False",
        "a < b and (not c) -> a < b or not c",
        "a < b -> a <= b",
        "not c -> c",
        "raise ValueError(f'{a + 1}') -> nothing",
        "while a is None: ... -> if False",
        "break -> continue",
        "case 1: ... -> no such case",
        "a.d = min(a, b) -> nothing",
        "min(a, b) -> max(a, b)",
        "case _: ... -> no such case",
        "g(a, b=True, c=b) -> nothing",
        "g(a, b=True, c=b) -> without b",
        "g(a, b=True, c=b) -> without c",
        "True -> False",
        "[one for one in a if one] if b else c - 1 -> if True",
        "[one for one in a if one] if b else c - 1 -> if False",
        "c - 1 -> c + 1",
        "1 -> 2",
    ]


def test_each_mutant_changes_one_thing_and_compiles() -> None:
    whole = ast.unparse(ast.parse(SOURCE))
    made = [ast.unparse(mutated(SOURCE, mutation)) for mutation in mutations(SOURCE)]
    assert whole not in made
    assert len(set(made)) == len(made)
    for file in files(()):
        source = path_of(file).read_text("utf-8")
        for mutation in mutations(source)[::41]:
            compile(mutated(source, mutation), file, "exec")


def test_mutants_have_unique_names_and_a_repeatable_sample() -> None:
    mutants = [mutant for file in files(()) for mutant in of_file(file)]
    assert len({mutant.name for mutant in mutants}) == len(mutants) > 2000
    assert chosen(mutants, 5, 1) == chosen(mutants, 5, 1) != chosen(mutants, 5, 2)
    assert all(said["why"] and said["verdict"] in ("equivalent", "open") for said in judged().values())


def sampled() -> list[Mutant]:
    said = judged()
    mutants = [mutant for file in SAMPLED for mutant in of_file(file) if mutant.name not in said]
    return chosen(mutants, 4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", sampled(), ids=lambda mutant: mutant.name[:60])
def test_a_mutant_of_the_sample_is_killed(mutant: Mutant) -> None:
    assert tried(mutant, is_quick=True, limit=150).killer is not None


def test_every_survivor_that_is_excused_is_a_mutant_that_is_made() -> None:
    named = {entry["name"] for entry in tomllib.loads(SURVIVORS.read_text())["survivor"]}
    assert named - {mutant.name for file in files([]) for mutant in of_file(file)} == set()
