"""The script that one master of a Redlock runs atomically, its arguments and its answers.

A record is a hash: `i` its incarnation, `n` the number of writes that this master has applied to it, `x` the sum of
their numbers (the same on masters that applied the same writes, in any order), `s` its lifetime (milliseconds), and
the fields, each name prefixed by a dot. A vote keeps the record that it replaces in a second key until it is won or
withdrawn. A key that holds no valid record gets an incarnation derived from its name: no command writes to it, and a
removal with that incarnation deletes it. Must not know how masters are asked together, nor how answers are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, Final

from lockstead.reading import TOO_LARGE, whole
from lockstead.stores.kept import NO_HEAD, NO_MAP, bounded, unreadable
from lockstead.stores.redis.resp import Words
from lockstead.values import Name, Space

FLAW: Final = b"d"
"""Field of an answer that says why a record is not sent; no record has it."""

RIGHTS: Final = (
    "~PREFIX:* +eval +evalsha +script|load +info +role +select +exists +type +hlen +hget +hmget +hgetall +pttl "
    "+zcard +zrangebylex +hset +del +rename +pexpire +zadd +zrem"
)
"""The ACL that a user needs on every master; see docs/access.md."""

FOREVER_MS: Final = 366 * 86_400_000
"""Milliseconds for records that live forever: every key gets a ttl."""

NUMBERS: Final = 2**52
"""Bound of the numbers of writes; sums are modulo it, which a Lua number holds exactly."""

SCRIPT: Final = b"""
local rec, old, index = KEYS[1], KEYS[2], KEYS[3]
local op = ARGV[1]
local call = redis.call

local function is_sound(key)
  if call('TYPE', key).ok ~= 'hash' or call('HLEN', key) > 1000 then return false end
  local s = call('HMGET', key, 'i', 'n', 'x', 's')
  if not s[1] or #s[1] > 64 or not string.find(s[1], '^[%w-]+$') then return false end
  for k = 2, 4 do
    if not s[k] or #s[k] > 16 or not string.find(s[k], '^%d+$') then return false end
  end
  return true
end
local exists = call('EXISTS', rec) == 1
local sound = not exists or is_sound(rec)
local damaged_id = 'damaged-' .. redis.sha1hex(rec)

local function state()
  if not sound then return {damaged_id, '0', '0'} end
  return call('HMGET', rec, 'i', 'n', 'x', 'b')
end
local function whole(key)
  local flat, size = call('HGETALL', key), 0
  for k = 1, #flat do size = size + #flat[k] end
  if size <= 66000 then return flat end
  local s = call('HMGET', key, 'i', 'n', 'x', 's')
  return {'i', s[1], 'n', s[2], 'x', s[3], 's', s[4], 'd', 'large'}
end
local function no(s)
  if not s[1] then return {0, {}} end
  return {0, {'i', s[1], 'n', s[2], 'x', s[3], 'b', s[4] or ''}}
end
local function fields(from)
  local flat = {}
  for k = from, #ARGV do flat[#flat + 1] = ARGV[k] end
  return flat
end
local function outlive(ms)
  if call('PTTL', index) < tonumber(ms) then call('PEXPIRE', index, ms) end
end
local function register(name, ms)
  call('ZADD', index, 0, name)
  outlive(ms)
  local base = string.sub(rec, 1, #rec - #name)
  for _, near in ipairs(call('ZRANGEBYLEX', index, '(' .. name, '+', 'LIMIT', 0, 2)) do
    if call('EXISTS', base .. near) == 0 then call('ZREM', index, near) end
  end
end
local function grant(id, name, ms, aside, from)
  call('HSET', rec, 'i', id, 'n', 1, 'x', 0, 's', ms, 'h', aside, unpack(fields(from)))
  call('PEXPIRE', rec, ms)
  register(name, ms)
  return {1, {}}
end
local function merge(key, w, from)
  local s = call('HMGET', key, 'n', 'x', 's')
  local x = string.format('%.0f', (tonumber(s[2]) + tonumber(w)) % 4503599627370496)
  call('HSET', key, 'n', tonumber(s[1]) + 1, 'x', x, unpack(fields(from)))
  call('PEXPIRE', key, s[3])
  outlive(s[3])  -- a listing shows what is renewed, though nothing new was registered for its lifetime
end

if op == 'read' then
  if not sound then return {1, {'i', damaged_id, 'n', '0', 'x', '0', 's', '0', 'd', 'damaged'}} end
  return {1, whole(rec)}
elseif op == 'create' then
  local s = state()
  if s[1] then return no(s) end
  call('ZCARD', index)  -- fails for what is not an index, before anything is written
  return grant(ARGV[2], ARGV[3], ARGV[4], 0, 5)
elseif op == 'replace' then
  local s = state()
  if not sound or s[1] ~= ARGV[5] or s[2] ~= ARGV[6] or s[3] ~= ARGV[7] then return no(s) end
  call('ZCARD', index)
  call('RENAME', rec, old)
  return grant(ARGV[2], ARGV[3], ARGV[4], 1, 8)
elseif op == 'extend' then
  local s = state()
  if not sound or not s[1] or (ARGV[2] ~= '' and s[1] ~= ARGV[2]) then return no(s) end
  merge(rec, ARGV[3], 4)
  if call('HGET', rec, 'h') == '2' and is_sound(old) then merge(old, ARGV[3], 4) end
  return {1, whole(rec)}
elseif op == 'amend' then
  local s = state()
  if not sound or s[1] ~= ARGV[4] or s[2] ~= ARGV[5] or s[3] ~= ARGV[6] then return no(s) end
  local ms = call('PTTL', rec)
  call('DEL', old)
  call('HSET', old, unpack(call('HGETALL', rec)))
  call('PEXPIRE', old, ms)
  merge(rec, ARGV[3], 7)
  call('HSET', rec, 'b', ARGV[2], 'h', 2)
  return {1, whole(rec)}
elseif op == 'undo' then
  if not sound then return {1, {}} end
  local s = call('HMGET', rec, 'i', 'b', 'h')
  if s[1] == ARGV[2] or s[2] == ARGV[2] then
    if s[3] ~= '0' and call('EXISTS', old) == 1 then
      call('RENAME', old, rec)
    else
      call('DEL', rec, old)
      redis.pcall('ZREM', index, ARGV[3])
    end
  end
  return {1, {}}
elseif op == 'remove' then
  local s = state()
  if s[1] ~= ARGV[2] then return no(s) end
  if ARGV[4] ~= '' and (s[2] ~= ARGV[4] or s[3] ~= ARGV[5]) then return no(s) end
  call('DEL', rec, old)
  redis.pcall('ZREM', index, ARGV[3])
  return {1, {}}
elseif op == 'copy' then
  if not sound then return {1, {}} end
  local s = state()
  if s[1] then
    if s[1] == ARGV[3] and s[2] == ARGV[4] and s[3] == ARGV[5] then call('HSET', rec, unpack(fields(7))) end
  elseif ARGV[4] == '' then
    call('HSET', rec, unpack(fields(7)))
    call('PEXPIRE', rec, ARGV[6])
    register(ARGV[2], ARGV[6])
  end
  return {1, {}}
elseif op == 'list' then
  local found, last = {}, ''
  for k = 3, #ARGV, 2 do
    local names = call('ZRANGEBYLEX', index, ARGV[k], ARGV[k + 1], 'LIMIT', 0, ARGV[2])
    if #names == tonumber(ARGV[2]) then last = names[#names] end
    for _, name in ipairs(names) do
      local key = rec .. name
      if call('EXISTS', key) == 0 then
        redis.pcall('ZREM', index, name)  -- who may only look may not
      elseif is_sound(key) then
        found[#found + 1] = {name, whole(key)}
      else
        local id = 'damaged-' .. redis.sha1hex(key)
        found[#found + 1] = {name, {'i', id, 'n', '0', 'x', '0', 's', '0', 'd', 'damaged'}}
      end
    end
  end
  return {found, last}
end
return redis.error_reply('ERR unknown word of lockstead: ' .. op)
"""

SHA: Final = sha1(SCRIPT).hexdigest().encode()  # noqa: S324 - Redis names scripts by it


def call(keys: tuple[str, str, str], *arguments: str | bytes | int) -> Words:
    """Return the command that runs the script."""
    words = (word if isinstance(word, bytes) else str(word).encode() for word in (*keys, *arguments))
    return (b"EVALSHA", SHA, b"3", *words)


@dataclass(frozen=True, slots=True)
class Seen:
    """One master's answer. is_done: it carried out the request. incarnation is None where there is no record.

    raw: the whole hash, where the answer shows it.
    """

    is_done: bool
    incarnation: str | None = None
    count: int = 0
    total: str = ""
    vote: str = ""
    raw: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether raw is complete: a damaged or too large record is not sent."""
        return FLAW not in self.raw

    @property
    def state(self) -> tuple[str, int, str]:
        """Incarnation, count and sum of the writes: equal where masters agree."""
        return self.incarnation or "", self.count, self.total

    def fields(self) -> dict[str, str]:
        """Return the fields of the record; those of `unreadable` for one that cannot be read."""
        flaw = self.raw.get(FLAW)
        if flaw is not None:
            return unreadable(TOO_LARGE if flaw == b"large" else NO_HEAD)
        try:
            fields = {name[1:].decode(): value.decode() for name, value in self.raw.items() if name[:1] == b"."}
        except UnicodeDecodeError:
            return unreadable(NO_MAP)
        return bounded(fields)


def seen(answer: Any) -> Seen:
    """Decode the script's answer to anything but a listing; ValueError if it is invalid."""
    match answer:
        case [bool() | int() as is_done, [*flat]]:
            return _seen(bool(is_done), flat)
        case _:
            raise ValueError("not an answer of the script")


@dataclass(frozen=True, slots=True)
class Part:
    """One master's answer to a listing: the record under each name. last: where its page ends, None for the last."""

    found: Mapping[bytes, Seen]
    last: bytes | None


def listed(answer: Any) -> Part:
    """Decode the script's answer to a listing; ValueError if it is invalid."""
    match answer:
        case [[*entries], bytes() as last]:
            found: dict[bytes, Seen] = {}
        case _:
            raise ValueError("not a listing of the script")
    for entry in entries:
        match entry:
            case [bytes() as name, [*flat]]:
                found[name] = _seen(True, flat)
            case _:
                raise ValueError("not a listing of the script")
    return Part(found, last or None)


def _seen(is_done: bool, flat: list[Any]) -> Seen:
    if not flat:
        return Seen(is_done)
    if not all(isinstance(text, bytes) for text in flat):
        raise ValueError("not a record as the script gives it")
    raw: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    count = _whole(raw.get(b"n", b""))
    incarnation, total, vote = (raw.get(name, b"").decode() for name in (b"i", b"x", b"b"))
    if not incarnation or count is None or None in (_whole(raw.get(b"x", b"")), _whole(raw.get(b"s", b"0"))):
        raise ValueError("not a record as the script gives it")
    return Seen(is_done, incarnation, count, total, vote, raw)


def _whole(text: bytes) -> int | None:
    return whole(text.decode("ascii", "replace"))


class Keys:
    """The Redis keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = _escaped(prefix)

    def of(self, name: Name) -> tuple[str, str, str]:
        """Return the keys of a record: its own, that of the record a vote replaces, and the index of its space."""
        inner = inner_name(name)
        space = name.space.value
        return f"{self._prefix}:{space}:{inner}", f"{self._prefix}:old:{space}:{inner}", self._index(name.space)

    def listing(self, space: Space) -> tuple[str, str, str]:
        """Return the keys of a listing: the prefix of the space's names, an unused one, and its index."""
        return f"{self._prefix}:{space.value}:", f"{self._prefix}:old", self._index(space)

    def _index(self, space: Space) -> str:
        return f"{self._prefix}:index:{space.value}"


def inner_name(name: Name) -> str:
    """Return a name as it is in the index of its space: the escaped key, then the part as it is."""
    return f"{_escaped(name.key)}:{name.part}" if name.part else _escaped(name.key)


def outer_name(space: Space, inner: bytes) -> Name | None:
    """Decode a name of `inner_name`; None if it is invalid."""
    try:
        key, _, part = inner.decode().partition(":")
    except UnicodeDecodeError:
        return None
    return Name(key.replace("%3A", ":").replace("%25", "%"), space, part)


def ranges(key: str | None, part_prefix: str, after: bytes | None) -> list[str | bytes]:
    """Return pairs of bounds in an index: for the names after one, or for those of a key, below a part."""
    if key is None:
        return ["-" if after is None else b"(" + after, "+"]
    inner = _escaped(key)
    below = f"{inner}:{part_prefix}".encode()
    exact: list[str | bytes] = [] if part_prefix else [f"[{inner}", f"[{inner}"]
    return [*exact, b"[" + below, b"(" + below + b"\xff"]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def flat_fields(fields: Mapping[str, str]) -> list[str]:
    """Encode fields for the hash."""
    return [text for name, value in fields.items() for text in (f".{name}", value)]


def milliseconds(min_retention: float) -> int:
    """Return the lifetime of a record in milliseconds, rounded up."""
    return FOREVER_MS if min_retention <= 0 else int(min_retention * 1000) + 1
