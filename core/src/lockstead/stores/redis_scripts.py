"""Decides what Redis does in one step: the Lua scripts, one for each command of a store.

A record is a hash: its fields, and under the field `@` its head: incarnation, revision, updated (microseconds of the
server's clock), life (milliseconds for which the key stays after a write) and token, with blanks between. Must not
know what the fields mean, nor how keys are named. Every key that a script writes gets a time to live in that script.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script, and the digest by which the server knows it."""

    name: str
    text: bytes = field(repr=False)
    digest: bytes

    @classmethod
    def of(cls, name: str, text: str) -> LuaScript:
        """Name a text. The digest only names it, it protects nothing."""
        encoded = (_PRELUDE + text).strip().encode()
        return cls(name, encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode())


_PRELUDE: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local function text(number) return string.format('%.0f', number) end
local function heading(key)
  local head = redis.call('HGET', key, '@')
  if not head then return nil, redis.call('EXISTS', key) == 1 end
  local inc, rev, updated, life, token = string.match(head, '^(%S+) (%d+) (%d+) (%d+) (%d+)$')
  if not inc then return nil, true end
  return { inc = inc, rev = rev, updated = tonumber(updated), life = tonumber(life), token = tonumber(token) }
end
local function keep(key, life)
  if redis.call('PTTL', key) < life then redis.call('PEXPIRE', key, life) end
end
local function enlist(index, part, life)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', text(now / 1000))
  redis.call('ZADD', index, text(now / 1000 + life), part)
  keep(index, life)
end
local function wake(waiters, record)
  while true do
    local first = redis.call('ZPOPMIN', waiters)
    if not first[1] then return end
    -- by pcall, since what was written before it is not taken back: no right to publish costs the wake-up alone
    local heard = redis.pcall('PUBLISH', first[1], record)
    if type(heard) ~= 'number' or heard > 0 then return end
  end
end
local function write(key, head, from)
  redis.call('HSET', key, '@', head)
  for first = from, #ARGV, 1000 do
    redis.call('HSET', key, unpack(ARGV, first, math.min(first + 999, #ARGV)))
  end
end
"""

GRANT: Final = LuaScript.of(
    "grant",
    """
-- KEYS: record, then token counter or index. ARGV: incarnation ('' to create), revision, nonce, life, life of the
-- counter (0: no lock, so an index), part, then fields and values
local token = math.floor(now / 1000)
if ARGV[1] == '' then
  if redis.call('EXISTS', KEYS[1]) == 1 then return { 'conflict', text(now) } end
else
  local old, foreign = heading(KEYS[1])
  if foreign then return { 'foreign', text(now) } end
  if not old then return { 'absent', text(now) } end
  if old.inc ~= ARGV[1] or old.rev ~= ARGV[2] then return { 'conflict', text(now) } end
  now = math.max(now, old.updated)
  token = math.max(token, old.token + 1)
end
local life = tonumber(ARGV[4])
if ARGV[5] ~= '0' then
  local counted = redis.call('GET', KEYS[2])
  if counted then token = math.max(token, (tonumber(counted) or 0) + 1) end
  redis.call('SET', KEYS[2], text(token), 'PX', ARGV[5])
elseif KEYS[2] then
  enlist(KEYS[2], ARGV[6], life)
end
if ARGV[1] ~= '' then redis.call('DEL', KEYS[1]) end
local head = ARGV[3] .. ' 1 ' .. text(now) .. ' ' .. ARGV[4] .. ' ' .. text(token)
write(KEYS[1], head, 7)
redis.call('PEXPIRE', KEYS[1], life)
return { 'ok', text(now), head }
""",
)

READ: Final = LuaScript.of(
    "read",
    """
-- KEYS: record
return { 'ok', text(now), redis.call('HGETALL', KEYS[1]) }
""",
)

EXTEND: Final = LuaScript.of(
    "extend",
    """
-- KEYS: record, then waiters or index. ARGV: incarnation ('' for any), revision ('' for any), what the second key is
-- ('waiters', 'index' or ''), part, then fields and values
local old, foreign = heading(KEYS[1])
if foreign then return { 'foreign', text(now) } end
if not old then return { 'absent', text(now) } end
if (ARGV[1] ~= '' and old.inc ~= ARGV[1]) or (ARGV[2] ~= '' and old.rev ~= ARGV[2]) then
  return { 'conflict', text(now) }
end
now = math.max(now, old.updated)
local head = table.concat({ old.inc, text(old.rev + 1), text(now), text(old.life), text(old.token) }, ' ')
write(KEYS[1], head, 5)
redis.call('PEXPIRE', KEYS[1], old.life)
if ARGV[3] == 'waiters' then wake(KEYS[2], KEYS[1]) elseif ARGV[3] == 'index' then
  enlist(KEYS[2], ARGV[4], old.life)
end
return { 'ok', text(now), redis.call('HGETALL', KEYS[1]) }
""",
)

REMOVE: Final = LuaScript.of(
    "remove",
    """
-- KEYS and ARGV: as for extend, without fields
local old, foreign = heading(KEYS[1])
if foreign then return { 'foreign', text(now) } end
if not old then return { 'absent', text(now) } end
if (ARGV[1] ~= '' and old.inc ~= ARGV[1]) or (ARGV[2] ~= '' and old.rev ~= ARGV[2]) then
  return { 'conflict', text(now) }
end
redis.call('DEL', KEYS[1])
if ARGV[3] == 'waiters' then wake(KEYS[2], KEYS[1]) elseif ARGV[3] == 'index' then
  redis.call('ZREM', KEYS[2], ARGV[4])
end
return { 'ok', text(math.max(now, old.updated)) }
""",
)

ENROL: Final = LuaScript.of(
    "enrol",
    """
-- KEYS: record, waiters. ARGV: channel, since when it waits ('' for now), life of the list, how the head began when it
-- was last seen ('' for never)
local head = redis.call('HGET', KEYS[1], '@')
if not head then return { 'absent', text(now) } end
if ARGV[4] ~= '' and string.sub(head, 1, #ARGV[4]) ~= ARGV[4] then return { 'conflict', text(now) } end
local since = ARGV[2]
if since == '' then since = text(now) end
redis.call('ZADD', KEYS[2], since, ARGV[1])
keep(KEYS[2], tonumber(ARGV[3]))
return { 'ok', since }
""",
)

PASS_ON: Final = LuaScript.of(
    "pass-on",
    """
-- KEYS: record, waiters. Whoever was woken waits no more: wake the next
wake(KEYS[2], KEYS[1])
return { 'ok', text(now) }
""",
)
