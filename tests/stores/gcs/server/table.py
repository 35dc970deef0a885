"""The behaviour of the storage API that a lock rests on, as data.

Taken from Google's own testbench. Each row is one request in one situation; `test_table.py` plays them against our
server, or against any other that STORAGE_EMULATOR_HOST names.

given
    absent      never there, as far as the test knows
    deleted     was there, is gone
    present     inserted once: metageneration 1
    patched     inserted, then patched once: metageneration 2
    recreated   inserted, patched, deleted, inserted again: metageneration 1
query
    values may name {g}, {m} (generation and metageneration now), {next_m}, {old_g}, {old_m} (of the incarnation before)
then
    same        every field as before
    changed     metageneration one more, `updated` later; generation and timeCreated stay; metadata merged
    new         another generation, metageneration 1
    gone        404
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    promise: str
    given: str
    operation: str
    query: Mapping[str, str]
    status: int
    then: str


G, NOT_G = "ifGenerationMatch", "ifGenerationNotMatch"
M, NOT_M = "ifMetagenerationMatch", "ifMetagenerationNotMatch"

TABLE = (
    # insert
    Row("insert makes a new object", "absent", "insert", {}, 200, "new"),
    Row("insert overwrites without preconditions", "patched", "insert", {}, 200, "new"),
    Row("insert if absent, absent", "absent", "insert", {G: "0"}, 200, "new"),
    Row("insert if absent, deleted", "deleted", "insert", {G: "0"}, 200, "new"),
    Row("insert if absent, present", "present", "insert", {G: "0"}, 412, "same"),
    Row("insert if absent, recreated", "recreated", "insert", {G: "0"}, 412, "same"),
    Row("insert over the right generation", "present", "insert", {G: "{g}"}, 200, "new"),
    Row("insert over a stale generation", "recreated", "insert", {G: "{old_g}"}, 412, "same"),
    Row("insert over a generation that is gone", "deleted", "insert", {G: "{old_g}"}, 412, "gone"),
    Row("insert over the right metageneration", "patched", "insert", {G: "{g}", M: "{m}"}, 200, "new"),
    Row("insert over the wrong metageneration", "patched", "insert", {G: "{g}", M: "1"}, 412, "same"),
    # patch
    Row("patch merges", "present", "patch", {}, 200, "changed"),
    Row("patch, right generation", "present", "patch", {G: "{g}"}, 200, "changed"),
    Row("patch, right generation and metageneration", "patched", "patch", {G: "{g}", M: "{m}"}, 200, "changed"),
    Row("patch, wrong generation", "recreated", "patch", {G: "{old_g}"}, 412, "same"),
    Row("patch, wrong generation, right metageneration", "recreated", "patch", {G: "{old_g}", M: "{m}"}, 412, "same"),
    Row("patch, right generation, wrong metageneration", "patched", "patch", {G: "{g}", M: "1"}, 412, "same"),
    Row("patch, metageneration ahead", "present", "patch", {G: "{g}", M: "{next_m}"}, 412, "same"),
    Row("patch, metageneration 1 alone, recreated: hits", "recreated", "patch", {M: "1"}, 200, "changed"),
    Row("patch if absent, present", "present", "patch", {G: "0"}, 412, "same"),
    Row("patch of an absent object", "absent", "patch", {}, 404, "gone"),
    Row("patch of a deleted object", "deleted", "patch", {G: "{old_g}", M: "{old_m}"}, 404, "gone"),
    Row("patch of a named generation that is gone", "recreated", "patch", {"generation": "{old_g}"}, 404, "same"),
    # delete
    Row("delete", "present", "delete", {}, 204, "gone"),
    Row("delete, right generation and metageneration", "patched", "delete", {G: "{g}", M: "{m}"}, 204, "gone"),
    Row("delete, wrong generation", "recreated", "delete", {G: "{old_g}"}, 412, "same"),
    Row("delete, right generation, wrong metageneration", "patched", "delete", {G: "{g}", M: "1"}, 412, "same"),
    Row("delete, wrong metageneration", "patched", "delete", {M: "1"}, 412, "same"),
    Row("delete, stale generation, right metageneration", "recreated", "delete", {G: "{old_g}", M: "1"}, 412, "same"),
    Row("delete, metageneration 1 alone, recreated: hits", "recreated", "delete", {M: "1"}, 204, "gone"),
    Row("delete of an absent object", "absent", "delete", {}, 404, "gone"),
    Row("delete of a deleted object", "deleted", "delete", {G: "{old_g}"}, 404, "gone"),
    Row("delete of a named generation that is gone", "recreated", "delete", {"generation": "{old_g}"}, 404, "same"),
    # reading
    Row("get", "present", "get", {}, 200, "same"),
    Row("get of an absent object", "absent", "get", {}, 404, "gone"),
    Row("get of a deleted object", "deleted", "get", {}, 404, "gone"),
    Row("get, metageneration as known", "patched", "get", {NOT_M: "{m}"}, 304, "same"),
    Row("get, metageneration moved", "patched", "get", {NOT_M: "1"}, 200, "same"),
    Row("get, generation as known", "present", "get", {NOT_G: "{g}"}, 304, "same"),
    Row("get, generation moved", "recreated", "get", {NOT_G: "{old_g}"}, 200, "same"),
    Row("get, wrong generation", "recreated", "get", {G: "{old_g}"}, 412, "same"),
    Row("get, wrong metageneration", "patched", "get", {M: "1"}, 412, "same"),
    Row("get of a named generation", "present", "get", {"generation": "{g}"}, 200, "same"),
    Row("get of a named generation that is gone", "recreated", "get", {"generation": "{old_g}"}, 404, "same"),
    Row("content", "present", "content", {}, 200, "same"),
    Row("content, generation as known", "present", "content", {NOT_G: "{g}"}, 304, "same"),
    Row("content, wrong generation", "recreated", "content", {G: "{old_g}"}, 412, "same"),
    Row("content of an absent object", "absent", "content", {}, 404, "gone"),
    # copying (the row's object is the target; there is always a source, of generation {source_g})
    Row("copy if absent, absent", "absent", "copy", {G: "0"}, 200, "new"),
    Row("copy if absent, present", "present", "copy", {G: "0"}, 412, "same"),
    Row("copy over the right generation", "present", "copy", {G: "{g}"}, 200, "new"),
    Row("copy over a stale generation", "recreated", "copy", {G: "{old_g}"}, 412, "same"),
    Row("copy, source as known", "absent", "copy", {"ifSourceGenerationMatch": "{source_g}"}, 200, "new"),
    Row("copy, source moved", "absent", "copy", {"ifSourceGenerationMatch": "1"}, 412, "gone"),
    Row("rewrite if absent, absent", "absent", "rewrite", {G: "0"}, 200, "new"),
    Row("rewrite if absent, present", "present", "rewrite", {G: "0"}, 412, "same"),
    Row("rewrite, source moved", "absent", "rewrite", {"ifSourceGenerationMatch": "1"}, 412, "gone"),
)

NAMES = (
    "plain",
    "a/b/c",
    "locks/é/ü",
    "what?#really",
    "with blanks and+plus",
    "100%25",
    "a%2Fb",
    "日本語",
    "quote'\"&<>",
    "dots/../and/./so",
    "trailing/",
)
