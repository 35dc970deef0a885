"""Decides what one master of a Redlock does: one script, judged and carried out in one step, and how it is asked.

A record is a hash: `i` its incarnation, `n` how many writes this master has applied to it, `x` the sum of their
numbers (the same on masters that applied the same writes, in whatever order), `s` for how long it stands
(milliseconds), and the fields, each name behind a dot. What a vote puts aside stands beside it until the vote is won
or taken back. Must not know how masters are asked together, nor how their answers are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, Final, TypeAlias

from lockstead.values import Name, Space

Words: TypeAlias = "tuple[str | bytes | int, ...]"
"""A command of Redis with its arguments."""

FOREVER_MS: Final = 90 * 86_400_000
"""Milliseconds that stand for ever: no key of ours is without a ttl."""

NUMBERS: Final = 2**52
"""Writes are numbered below this; sums are kept modulo it, which a double of Lua holds exactly."""

SCRIPT: Final = """
local rec, old, index = KEYS[1], KEYS[2], KEYS[3]
local op = ARGV[1]
local call = redis.call

local function state() return call('HMGET', rec, 'i', 'n', 'x', 'b') end
local function no(s)
  if not s[1] then return {0, {}} end
  return {0, {'i', s[1], 'n', s[2], 'x', s[3], 'b', s[4] or ''}}
end
local function fields(from)
  local flat = {}
  for k = from, #ARGV do flat[#flat + 1] = ARGV[k] end
  return flat
end
local function register(name, ms)
  call('ZADD', index, 0, name)
  if call('PTTL', index) < ms then call('PEXPIRE', index, ms) end
  local base = string.sub(rec, 1, #rec - #name)
  for _, near in ipairs(call('ZRANGEBYLEX', index, '(' .. name, '+', 'LIMIT', 0, 2)) do
    if call('EXISTS', base .. near) == 0 then call('ZREM', index, near) end
  end
end
local function grant(id, name, ms, aside, from)
  call('HSET', rec, 'i', id, 'n', 1, 'x', 0, 's', ms, 'h', aside, unpack(fields(from)))
  call('PEXPIRE', rec, ms)
  register(name, tonumber(ms))
  return {1, {}}
end
local function merge(key, w, from)
  local s = call('HMGET', key, 'n', 'x', 's')
  local x = string.format('%.0f', (tonumber(s[2]) + tonumber(w)) % 4503599627370496)
  call('HSET', key, 'n', tonumber(s[1]) + 1, 'x', x, unpack(fields(from)))
  call('PEXPIRE', key, s[3])
end

if op == 'read' then
  return {1, call('HGETALL', rec)}
elseif op == 'create' then
  local s = state()
  if s[1] then return no(s) end
  return grant(ARGV[2], ARGV[3], ARGV[4], 0, 5)
elseif op == 'replace' then
  local s = state()
  if s[1] ~= ARGV[5] or s[2] ~= ARGV[6] or s[3] ~= ARGV[7] then return no(s) end
  call('RENAME', rec, old)
  return grant(ARGV[2], ARGV[3], ARGV[4], 1, 8)
elseif op == 'extend' then
  local s = state()
  if not s[1] or (ARGV[2] ~= '' and s[1] ~= ARGV[2]) then return no(s) end
  merge(rec, ARGV[3], 4)
  if call('HGET', rec, 'h') == '2' and call('EXISTS', old) == 1 then merge(old, ARGV[3], 4) end
  return {1, call('HGETALL', rec)}
elseif op == 'amend' then
  local s = state()
  if s[1] ~= ARGV[4] or s[2] ~= ARGV[5] or s[3] ~= ARGV[6] then return no(s) end
  local ms = call('PTTL', rec)
  call('DEL', old)
  call('HSET', old, unpack(call('HGETALL', rec)))
  call('PEXPIRE', old, ms)
  merge(rec, ARGV[3], 7)
  call('HSET', rec, 'b', ARGV[2], 'h', 2)
  return {1, call('HGETALL', rec)}
elseif op == 'undo' then
  local s = call('HMGET', rec, 'i', 'b', 'h')
  if s[1] == ARGV[2] or s[2] == ARGV[2] then
    if s[3] ~= '0' and call('EXISTS', old) == 1 then
      call('RENAME', old, rec)
    else
      call('DEL', rec, old)
      call('ZREM', index, ARGV[3])
    end
  end
  return {1, {}}
elseif op == 'remove' then
  local s = state()
  if s[1] ~= ARGV[2] then return no(s) end
  if ARGV[4] ~= '' and (s[2] ~= ARGV[4] or s[3] ~= ARGV[5]) then return no(s) end
  call('DEL', rec, old)
  call('ZREM', index, ARGV[3])
  return {1, {}}
elseif op == 'copy' then
  local s = state()
  if s[1] then
    if s[1] == ARGV[3] and s[2] == ARGV[4] and s[3] == ARGV[5] then call('HSET', rec, unpack(fields(7))) end
  elseif ARGV[4] == '' then
    call('HSET', rec, unpack(fields(7)))
    call('PEXPIRE', rec, ARGV[6])
    register(ARGV[2], tonumber(ARGV[6]))
  end
  return {1, {}}
elseif op == 'list' then
  local found = {}
  for k = 2, #ARGV, 2 do
    for _, name in ipairs(call('ZRANGEBYLEX', index, ARGV[k], ARGV[k + 1])) do
      local flat = call('HGETALL', rec .. name)
      if #flat > 0 then found[#found + 1] = {name, flat} else call('ZREM', index, name) end
    end
  end
  return found
end
return redis.error_reply('ERR unknown word of lockstead: ' .. op)
"""

SHA: Final = sha1(SCRIPT.encode()).hexdigest()  # noqa: S324 - Redis names scripts by it


@dataclass(frozen=True, slots=True)
class Seen:
    """What one master showed. is_done: it did what it was asked. incarnation is None where there is no record.

    raw is the whole hash as it stands there, where the answer shows it.
    """

    is_done: bool
    incarnation: str | None = None
    count: int = 0
    total: str = ""
    vote: str = ""
    stands_ms: int = 0
    raw: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def state(self) -> tuple[str, int, str]:
        """Incarnation, number and sum of the writes: equal where masters agree."""
        return self.incarnation or "", self.count, self.total

    def fields(self) -> dict[str, str]:
        """Give the fields of the record."""
        return {name[1:].decode(): value.decode() for name, value in self.raw.items() if name[:1] == b"."}


def seen(answer: Any) -> Seen:
    """Read what the script answered to anything but a listing."""
    return _seen(bool(answer[0]), answer[1])


def listed(answer: Any) -> dict[bytes, Seen]:
    """Read a listing: what stands under each name."""
    return {name: _seen(True, flat) for name, flat in answer}


def _seen(is_done: bool, flat: list[bytes]) -> Seen:
    if not flat:
        return Seen(is_done)
    raw = dict(zip(flat[::2], flat[1::2], strict=True))
    return Seen(
        is_done,
        raw[b"i"].decode(),
        int(raw[b"n"]),
        raw[b"x"].decode(),
        raw.get(b"b", b"").decode(),
        int(raw.get(b"s", b"0")),
        raw,
    )


class Keys:
    """The names of all that stands in the masters under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = _escaped(prefix)

    def of(self, name: Name) -> tuple[str, str, str]:
        """Give the keys of a record: itself, what a vote puts aside, and the index of its space."""
        inner = inner_name(name)
        space = name.space.value
        return f"{self._prefix}:{space}:{inner}", f"{self._prefix}:old:{space}:{inner}", self._index(name.space)

    def listing(self, space: Space) -> tuple[str, str, str]:
        """Give the keys of a listing: what the names of the space begin with, nothing, and its index."""
        return f"{self._prefix}:{space.value}:", f"{self._prefix}:old", self._index(space)

    def _index(self, space: Space) -> str:
        return f"{self._prefix}:index:{space.value}"


def inner_name(name: Name) -> str:
    """Give how a name stands in the index of its space: the key escaped, and the part, which is last, as it is."""
    return f"{_escaped(name.key)}:{name.part}" if name.part else _escaped(name.key)


def outer_name(space: Space, inner: bytes) -> Name:
    """Read what `inner_name` wrote."""
    key, _, part = inner.decode().partition(":")
    return Name(key.replace("%3A", ":").replace("%25", "%"), space, part)


def ranges(key: str | None, part_prefix: str) -> list[str | bytes]:
    """Give the pairs of bounds within which the names of a key, below a part, stand in an index."""
    if key is None:
        return ["-", "+"]
    inner = _escaped(key)
    below = f"{inner}:{part_prefix}".encode()
    exact: list[str | bytes] = [] if part_prefix else [f"[{inner}", f"[{inner}"]
    return [*exact, b"[" + below, b"(" + below + b"\xff"]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def flat_fields(fields: Mapping[str, str]) -> list[str]:
    """Write fields as they stand in the hash."""
    return [text for name, value in fields.items() for text in (f".{name}", value)]


def milliseconds(stands: float) -> int:
    """Give for how long a record stands in milliseconds, rounded up: never less than was asked."""
    return FOREVER_MS if stands <= 0 else int(stands * 1000) + 1
