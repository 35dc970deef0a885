"""What the server says to who lacks a permission, operation by operation."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from gcs_emulator import GcsServer
from tests.stores.gcs.server.driver import Driver

OPERATIONS: dict[str, Callable[[Driver], httpx.Response]] = {
    "insert": lambda own: own.insert("new"),
    "overwrite": lambda own: own.insert("there"),
    "get": lambda own: own.get("there"),
    "media": lambda own: own.content("there"),
    "patch": lambda own: own.patch("there"),
    "delete": lambda own: own.delete("there"),
    "list": lambda own: own.http.get("/storage/v1/b/bucket/o"),
    "bucket": lambda own: own.http.get("/storage/v1/b/bucket"),
}
NEEDED_BY = {
    "storage.objects.create": {"insert", "overwrite"},
    "storage.objects.get": {"get", "media", "patch"},
    "storage.objects.update": {"patch"},
    "storage.objects.delete": {"overwrite", "delete"},
    "storage.objects.list": {"list"},
    "storage.buckets.get": {"bucket"},
}


@pytest.mark.parametrize("permission", NEEDED_BY)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_is_refused_for_want_of_its_permissions_alone(
    server: GcsServer, own: Driver, operation: str, permission: str
) -> None:
    own.insert("there").raise_for_status()
    before = server.objects("bucket")
    server.faults.denied = frozenset({permission})
    answer = OPERATIONS[operation](own)
    if operation not in NEEDED_BY[permission]:
        assert answer.status_code in (200, 204)
        return
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["errors"][0]["reason"] == "forbidden"
    assert f"does not have {permission} access" in error["message"]
    assert server.objects("bucket") == before


def test_a_test_of_permissions_needs_none_and_tells_which_are_left(server: GcsServer, own: Driver) -> None:
    server.faults.denied = frozenset(NEEDED_BY) - {"storage.objects.get"}
    answer = own.http.get("/storage/v1/b/bucket/iam/testPermissions", params={"permissions": list(NEEDED_BY)})
    assert answer.json() == {
        "kind": "storage#testIamPermissionsResponse",
        "permissions": ["storage.objects.get"],
    }


def test_who_may_not_list_is_not_told_that_an_object_is_absent(server: GcsServer, own: Driver) -> None:
    assert [own.get("absent").status_code, own.delete("absent").status_code] == [404, 404]
    server.faults.denied = frozenset({"storage.objects.list"})
    assert [own.get("absent").status_code, own.delete("absent").status_code] == [403, 403]
    assert own.http.get("/storage/v1/b/nowhere/o/absent").status_code == 404, "a bucket is not a secret"


def test_permissions_come_back_with_the_end_of_the_faults(server: GcsServer, own: Driver) -> None:
    own.http.patch("/_settings", json={"denied": ["storage.objects.create"]}).raise_for_status()
    assert own.http.get("/_settings").json()["denied"] == ["storage.objects.create"]
    assert own.insert("new").status_code == 403
    own.http.delete("/_faults").raise_for_status()
    assert own.insert("new").status_code == 200
    assert own.http.patch("/_settings", json={"denied": "everything"}).status_code == 400
    assert own.http.patch("/_settings", json={"denied": [1]}).status_code == 400
    assert server.faults.denied == frozenset()
