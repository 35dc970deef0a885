"""What Redis does in one step: the Lua scripts, one for each command of a store.

A record is one string: its head, a line feed, and its fields as a JSON object of texts. The head is incarnation,
revision, updated (microseconds of the server's clock), life (milliseconds for which the key stays after a write) and
token, with blanks between. Every answer is one string too: a word, the server's time, and what there is to show.

One string, because that is written together with its time to live, and read without taking fields apart. Must not know
what the fields mean, nor how keys are named. Every key that a script writes gets a time to live in that script.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from lockstead.reading import RECORD_BYTES_MAX
from lockstead.stores.kept import DAMAGED


@dataclass(frozen=True, slots=True)
class LuaScript:
    """A script, and the digest by which the server knows it."""

    name: str
    text: bytes = field(repr=False)
    digest: bytes

    @classmethod
    def of(cls, name: str, *pieces: str) -> LuaScript:
        """Name a text. The digest only names it, it protects nothing."""
        encoded = "".join(pieces).strip().encode()
        return cls(name, encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode())


_NOW: Final = """
local clock = redis.call('TIME')
local now = clock[1] .. string.format('%06d', clock[2])
local stamp = now
"""
"""The server's time in microseconds, as text, and what a write is stamped with.

Numbers in Lua are exact up to 2^53, which comes in the year 2255.
"""

_FOUND: Final = f"""
local value = redis.pcall('GET', KEYS[1])
if not value then return 'absent ' .. now end
if type(value) ~= 'string' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local function damaged()
  if type(value) ~= 'string' then return '{DAMAGED}kind' end
  return '{DAMAGED}' .. redis.sha1hex(#value .. ':' .. string.sub(value, 1, {RECORD_BYTES_MAX}))
end
local function foreign()
  return 'foreign ' .. now .. ' ' .. damaged() .. ' ' .. (type(value) == 'string' and #value or 0)
end
local inc, rev, updated, life, token, fields
if type(value) == 'string' and #value <= {RECORD_BYTES_MAX} then
  inc, rev, updated, life, token, fields = string.match(value, '^(%x+) (%d+) (%d+) (%d+) (%d+)\\n(.*)$')
end
if inc and (#inc > 64 or #rev > 15 or #updated > 16 or #life > 15 or #token > 16) then inc = nil end
"""
"""The record as it stands. Without an incarnation: another kind of key, too large, or nothing that we wrote; numbers
beyond those of Lua would be written back as others. What stands there then has a name by which it can be removed."""

_EXPECTED: Final = """
if not inc then return foreign() end
if (ARGV[1] ~= '' and inc ~= ARGV[1]) or (ARGV[2] ~= '' and rev ~= ARGV[2]) then return 'conflict ' .. now end
if tonumber(updated) > tonumber(now) then stamp = updated end
"""
"""The end of the script unless the record is in the state expected. A stamp never goes back, even if the clock did."""

_STANDING: Final = _FOUND + _EXPECTED
"""The record as it stands."""

_KEEP: Final = """
local function keep(key, life)
  if redis.call('PTTL', key) < tonumber(life) then redis.call('PEXPIRE', key, life) end
end
"""

_ENLIST: Final = (
    _KEEP
    + """
local function enlist(index, part, life)
  local ms = math.floor(tonumber(now) / 1000)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', string.format('%.0f', ms))
  redis.call('ZADD', index, string.format('%.0f', ms + life), part)
  keep(index, life)
end
"""
)

_WAKE: Final = """
local function wake(waiters, message)
  local ours = string.match(waiters, '^[^{]*') .. 'wake:'
  for _ = 1, 1000 do
    -- by pcall, since what was written before it is not taken back: no right to publish, or something else that stands
    -- there, costs the wake-up alone
    local first = redis.pcall('ZPOPMIN', waiters)
    if type(first) ~= 'table' or not first[1] then return end
    if string.sub(first[1], 1, #ours) == ours then
      local heard = redis.pcall('PUBLISH', first[1], message)
      if type(heard) ~= 'number' or heard > 0 then return end
    end
  end
end
"""
"""Who is not heard is passed over, a thousand at most: the others find out by polling. Published is to channels of ours
alone, for anybody who may write to the list may have put another one there."""

_HEADED: Final = """
if not (token < 9007199254740992) then return 'spent ' .. now end
token = string.format('%.0f', token)
local head = ARGV[3] .. ' 1 ' .. stamp .. ' ' .. ARGV[4] .. ' ' .. token
"""

_CREATED: Final = """
if not redis.call('SET', KEYS[1], head .. '\\n' .. fields, 'PX', ARGV[4], 'NX') then return 'conflict ' .. now end
"""

_CREATED_LISTED: Final = """
if not redis.call('SET', KEYS[1], head .. '\\n' .. ARGV[5], 'PX', ARGV[4], 'NX') then return 'conflict ' .. now end
"""

_REPLACED: Final = """
redis.call('SET', KEYS[1], head .. '\\n' .. ARGV[5], 'PX', ARGV[4])
"""

_COUNTING: Final = """
local counted = redis.call('GET', KEYS[2])
if counted then token = math.max(token, (tonumber(counted) or 0) + 1) end
"""

_COUNTED: Final = """
redis.call('SET', KEYS[2], token .. ' ', 'PX', ARGV[6])
"""
"""A blank behind the number says that the record of this grant was not removed yet; an older version reads past it."""

_PUT_BACK: Final = """
if token and redis.pcall('GET', KEYS[3]) == token .. ' ' then redis.call('SET', KEYS[3], token, 'PX', ARGV[3]) end
"""
"""Say in the counter that the record was removed, and did not vanish for its age or for want of memory."""

_FORGOTTEN: Final = """
local word, fields = 'ok ', ARGV[5]
if counted and string.sub(counted, -1) == ' ' and ARGV[5] ~= '{}' and ARGV[7] ~= '{}' then
  word, fields = 'forgot ', string.sub(ARGV[5], 1, -2) .. ',' .. string.sub(ARGV[7], 2)
end
"""
"""Where the last record was not removed and yet is not there, the new one says in its fields that it was forgotten."""

_FRESH: Final = """
local token = tonumber(now)
"""

_ANSWERED: Final = """
return 'ok ' .. now .. ' ' .. head
"""

_ANSWERED_CREATE: Final = """
return word .. now .. ' ' .. head
"""

# KEYS: record, counter of tokens of a lock, index if there is one. ARGV: incarnation and revision expected ('' to
# create), new incarnation, life, fields, life of the counter, to create a lock the fields to add where a record was
# forgotten, and the part
_LATER: Final = """
local token = math.max(tonumber(now), token + 1)
"""


def _listed(last: int, life: str = "ARGV[4]") -> str:
    """Return the line that enlists a record in its index, the last of KEYS if there is one."""
    return f"if KEYS[{last}] then enlist(KEYS[{last}], ARGV[#ARGV], {life}) end\n"


def _unlisted(last: int) -> str:
    """Return the line that takes a record off its index."""
    return f"if KEYS[{last}] then redis.call('ZREM', KEYS[{last}], ARGV[#ARGV]) end\n"


CREATE: Final = LuaScript.of(
    "create", _NOW, _ENLIST, _FRESH, _COUNTING, _HEADED, _FORGOTTEN, _CREATED, _COUNTED, _listed(3), _ANSWERED_CREATE
)
CREATE_LISTED: Final = LuaScript.of("create", _NOW, _ENLIST, _FRESH, _HEADED, _CREATED_LISTED, _listed(2), _ANSWERED)
REPLACE: Final = LuaScript.of(
    *("replace", _NOW, _ENLIST, _STANDING, _LATER, _COUNTING, _HEADED, _REPLACED, _COUNTED, _listed(3), _ANSWERED)
)
REPLACE_LISTED: Final = LuaScript.of(
    "replace", _NOW, _ENLIST, _STANDING, _LATER, _HEADED, _REPLACED, _listed(2), _ANSWERED
)

# KEYS: record
READ: Final = LuaScript.of(
    "read",
    _NOW,
    _FOUND,
    """
if not inc then return foreign() end
return 'ok ' .. now .. ' ' .. value
""",
)

# KEYS: record. ARGV: how many bytes are sent at most
GLANCE: Final = LuaScript.of(
    "glance",
    _NOW,
    _FOUND,
    """
if not inc then return foreign() end
if #value > tonumber(ARGV[1]) then return 'large ' .. inc .. ' ' .. rev .. ' ' .. #value end
return 'ok ' .. now .. ' ' .. value
""",
)

# ARGV: cursor, pattern, how many to look at, bytes of the longest name that is ours, with one for each escaped byte
SCAN: Final = LuaScript.of(
    "scan",
    """
local told = redis.pcall('INFO', 'server')
local run = type(told) == 'string' and string.match(told, 'run_id:(%x+)') or ''
if ARGV[5] ~= '' and ARGV[5] ~= run then return {'', {}, run} end
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local ours, most = {}, tonumber(ARGV[4])
for _, key in ipairs(page[2]) do
  if #key <= 3 * most and #string.gsub(key, '%%[27][5BD]', '_') <= most then ours[#ours + 1] = key end
end
return {page[1], ours, run}
""",
)

# KEYS: record, waiters of a lock, index if there is one. ARGV: incarnation and revision expected ('' for any), fields
# to merge, part
_EXTENDED: Final = """
if ARGV[3] ~= '{}' then
  local is_map, merged = pcall(cjson.decode, fields)
  if not is_map or string.sub(fields, 1, 1) ~= '{' then return foreign() end
  for name, text in pairs(merged) do
    if type(text) ~= 'string' then return foreign() end
  end
  for name, text in pairs(cjson.decode(ARGV[3])) do merged[name] = text end
  fields = cjson.encode(merged)
end
local record = string.format('%s %.0f %s %s %s', inc, rev + 1, stamp, life, token) .. '\\n' .. fields
redis.call('SET', KEYS[1], record, 'PX', life)
"""
_SHOWN: Final = """
return 'ok ' .. now .. ' ' .. record
"""
CHANGED: Final = " changed"
"""How a message ends whose record is there. Before it stands the record's key; that alone, if the record is gone."""

_WAKING: Final = f"wake(KEYS[2], KEYS[1] .. '{CHANGED}')\n"
EXTEND: Final = LuaScript.of("extend", _NOW, _WAKE, _ENLIST, _STANDING, _EXTENDED, _listed(3, "life"), _WAKING, _SHOWN)
EXTEND_LISTED: Final = LuaScript.of("extend", _NOW, _ENLIST, _STANDING, _EXTENDED, _listed(2, "life"), _SHOWN)

# KEYS: record, waiters and counter of tokens of a lock, index if there is one. ARGV: incarnation and revision expected
# ('' for any), the life of a counter whose record was removed, part
_REMOVED: Final = """
redis.call('DEL', KEYS[1])
"""
_DONE: Final = """
return 'ok ' .. now
"""
_LEAVING: Final = (
    _FOUND
    + """
if not inc and ARGV[1] == damaged() then inc, rev, updated = ARGV[1], '0', now end
"""
    + _EXPECTED
)
REMOVE: Final = LuaScript.of(
    *("remove", _NOW, _WAKE, _LEAVING, _REMOVED, _PUT_BACK, _unlisted(4), "wake(KEYS[2], KEYS[1])\n", _DONE)
)
REMOVE_LISTED: Final = LuaScript.of("remove", _NOW, _LEAVING, _REMOVED, _unlisted(2), _DONE)

# KEYS: record, waiters. ARGV: channel, since when it waits ('' for now), life of the list, how the record began when it
# was last seen ('' for never; 'any' for the slots of a key, which have no one record). A process is enrolled once,
# however often it asks
ENROL: Final = LuaScript.of(
    "enrol",
    _NOW,
    _KEEP,
    """
local value = redis.pcall('GET', KEYS[1])
if not value and ARGV[4] ~= 'any' then return 'absent ' .. now end
local word = 'ok '
if type(value) ~= 'string' or string.sub(value, 1, #ARGV[4]) ~= ARGV[4] then word = 'changed ' end
local since = ARGV[2]
if since == '' then since = now end
redis.call('ZADD', KEYS[2], since, ARGV[1])
keep(KEYS[2], ARGV[3])
return word .. since
""",
)

# KEYS: record, waiters. Whoever was woken waits no more: wake the next
PASS_ON: Final = LuaScript.of(
    "pass-on",
    _NOW,
    _WAKE,
    f"wake(KEYS[2], redis.call('EXISTS', KEYS[1]) == 0 and KEYS[1] or KEYS[1] .. '{CHANGED}')\n",
    _DONE,
)

WRITING: Final = (CREATE, CREATE_LISTED, REPLACE, REPLACE_LISTED, EXTEND, EXTEND_LISTED, REMOVE, REMOVE_LISTED)
"""Those that change a record."""
