"""Every row of the behaviour table, and the promises about time, names and races that do not fit into a row."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from threading import Barrier

import httpx
import pytest

from tests.stores.gcs.server.driver import Driver
from tests.stores.gcs.server.table import NAMES, TABLE, Row

RACERS = 16
TICK = 0.005  # the API dates in milliseconds


def prepared(driver: Driver, name: str, given: str) -> dict[str, str]:
    """Bring the object into the given situation; give the numbers a row's query may name."""
    numbers: dict[str, str] = {}
    if given == "absent":
        return numbers
    first = driver.insert(name).json()
    if given in {"patched", "recreated"}:
        first = driver.patch(name, changes={"metadata": {"patched": "yes"}}).json()
    if given in {"deleted", "recreated"}:
        numbers |= {"old_g": first["generation"], "old_m": first["metageneration"]}
        driver.delete(name).raise_for_status()
    if given == "recreated":
        driver.insert(name).raise_for_status()
    now = driver.get(name)
    if now.is_success:
        at = now.json()
        numbers |= {"g": at["generation"], "m": at["metageneration"], "next_m": str(int(at["metageneration"]) + 1)}
    return numbers


def play(driver: Driver, name: str, row: Row, query: dict[str, str]) -> httpx.Response:
    match row.operation:
        case "insert":
            return driver.insert(name, query)
        case "patch":
            return driver.patch(name, query)
        case "delete":
            return driver.delete(name, query)
        case "get":
            return driver.get(name, query)
        case "content":
            return driver.content(name, query)
        case "copy":
            return driver.copy(f"{name}.source", name, query)
        case "rewrite":
            return driver.copy(f"{name}.source", name, query, verb="rewriteTo")
    raise ValueError(row.operation)


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.promise)
def test_row(driver: Driver, name: str, row: Row) -> None:
    numbers = prepared(driver, name, row.given)
    if row.operation in {"copy", "rewrite"}:
        numbers["source_g"] = driver.insert(f"{name}.source").json()["generation"]
    before = driver.get(name)
    time.sleep(TICK)
    answer = play(driver, name, row, {key: value.format(**numbers) for key, value in row.query.items()})
    after = driver.get(name)
    assert answer.status_code == row.status, answer.text
    assert "date" in answer.headers
    if row.then == "gone":
        assert after.status_code == 404
        return
    assert after.status_code == 200
    match row.then:
        case "same":
            assert after.json() == before.json()
        case "new":
            assert after.json()["generation"] not in {numbers.get("g"), numbers.get("old_g")}
            assert after.json()["metageneration"] == "1"
        case "changed":
            was, now = before.json(), after.json()
            assert now["generation"] == was["generation"]
            assert int(now["metageneration"]) == int(was["metageneration"]) + 1
            assert now["timeCreated"] == was["timeCreated"]
            assert instant(now["updated"]) > instant(was["updated"])
            assert now["metadata"]["keep"] == "1"
            assert now["metadata"]["new"] == "3"
            assert "drop" not in now["metadata"]
            assert answer.json() == now
        case _:
            pytest.fail(f"the table says {row.then!r}")


def test_an_inserted_object_shows_what_it_is(driver: Driver, name: str) -> None:
    shown = driver.insert(name, content=b"hello").json()
    assert shown["kind"] == "storage#object"
    assert (shown["bucket"], shown["name"]) == (driver.bucket, name)
    assert shown["metageneration"] == "1"
    assert int(shown["generation"]) > 0
    assert shown["size"] == "5"
    assert shown["md5Hash"] == "XUFAKrxLKna5cZ2REBfFkg=="
    assert shown["crc32c"] == "mnG7TA=="
    assert shown["contentType"] == "text/plain"
    assert shown["cacheControl"] == "no-store"
    assert instant(shown["updated"]) >= instant(shown["timeCreated"])
    assert driver.content(name).content == b"hello"


def test_cache_control_is_kept_over_a_patch_and_sent_with_the_content(driver: Driver, name: str) -> None:
    driver.insert(name)
    driver.patch(name)
    assert driver.get(name).json()["cacheControl"] == "no-store"
    assert driver.content(name).headers["cache-control"] == "no-store"


def test_a_patch_sets_and_with_null_removes_fields(driver: Driver, name: str) -> None:
    driver.insert(name)
    changed = driver.patch(name, changes={"cacheControl": None, "contentType": "text/html"}).json()
    assert "cacheControl" not in changed
    assert changed["contentType"] == "text/html"
    assert changed["metadata"]["keep"] == "1"


@pytest.mark.parametrize("odd", NAMES)
def test_odd_names_work_everywhere(driver: Driver, name: str, odd: str) -> None:
    odd = f"{name}/{odd}"
    shown = driver.insert(odd, {"ifGenerationMatch": "0"}, content=odd.encode()).json()
    assert shown["name"] == odd
    assert driver.get(odd).json()["generation"] == shown["generation"]
    assert driver.content(odd).content == odd.encode()
    assert driver.patch(odd).json()["metageneration"] == "2"
    assert driver.names({"prefix": odd}) == [odd]
    assert driver.delete(odd, {"ifGenerationMatch": shown["generation"]}).status_code == 204
    assert driver.get(odd).status_code == 404


def test_date_is_on_every_answer_and_agrees_with_updated(driver: Driver, name: str) -> None:
    updated = instant(driver.insert(name).json()["updated"])
    answers = [driver.get(name), driver.get(f"{name}.absent"), driver.patch(name, {"ifGenerationMatch": "1"})]
    assert [answer.status_code for answer in answers] == [200, 404, 412]
    for answer in answers:
        assert -1.5 <= (parsedate_to_datetime(answer.headers["date"]) - updated).total_seconds() <= 5


def test_errors_have_the_shape_of_the_api(driver: Driver, name: str) -> None:
    for answer, status in ((driver.get(name), 404), (driver.insert(name, {"ifGenerationMatch": "1"}), 412)):
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.json()["error"]["message"] if "error" in answer.json() else answer.json()["message"]


def race(run: Callable[[int], int]) -> list[int]:
    """Run for every racer at the same time; give their statuses."""
    together = Barrier(RACERS)

    def racer(number: int) -> int:
        together.wait(30)
        return run(number)

    with ThreadPoolExecutor(RACERS) as pool:
        return sorted(pool.map(racer, range(RACERS)))


ONE_WINNER = [200] + [412] * (RACERS - 1)


def test_a_race_of_inserts_has_one_winner(driver: Driver, name: str) -> None:
    assert race(lambda _: driver.insert(name, {"ifGenerationMatch": "0"}).status_code) == ONE_WINNER


def test_a_race_of_patches_from_one_metageneration_has_one_winner(driver: Driver, name: str) -> None:
    generation = driver.insert(name).json()["generation"]
    query = {"ifGenerationMatch": generation, "ifMetagenerationMatch": "1"}
    changes = [{"metadata": {"racer": str(number)}} for number in range(RACERS)]
    assert race(lambda number: driver.patch(name, query, changes=changes[number]).status_code) == ONE_WINNER
    assert driver.get(name).json()["metageneration"] == "2"


def test_a_race_of_deletes_has_one_winner(driver: Driver, name: str) -> None:
    generation = driver.insert(name).json()["generation"]
    found = race(lambda _: driver.delete(name, {"ifGenerationMatch": generation}).status_code)
    assert found == [204] + [404] * (RACERS - 1)


def test_generations_are_never_used_twice(driver: Driver, name: str) -> None:
    seen = set()
    for _ in range(20):
        seen.add(driver.insert(name, {"ifGenerationMatch": "0"}).json()["generation"])
        driver.delete(name).raise_for_status()
    assert len(seen) == 20
