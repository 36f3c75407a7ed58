"""Many finished executions in a Redis store, quickly.

One execution is really begun and finished; a script copies what that left behind, under other keys. So the
copies are what the store writes, whatever that is in this version.
"""

from __future__ import annotations

from typing import Any

from bench.sample import finished_once
from celery_guard.stores.redis import RedisStore

_BATCH = 2000

_COPY = """
local ns, from, lock, first, count = KEYS[1] .. ':', ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local x, l = redis.call('HGETALL', ns .. 'x:' .. from), redis.call('HGETALL', ns .. 'l:' .. lock)
local x_ttl, l_ttl = redis.call('PTTL', ns .. 'x:' .. from), redis.call('PTTL', ns .. 'l:' .. lock)
local all, kept = redis.call('ZSCORE', ns .. 'all', from), redis.call('ZSCORE', ns .. 'kept', from)
local task
for i = 1, #x, 2 do if x[i] == 'task' then task = x[i + 1] end end
for n = first, first + count - 1 do
  local key = from .. '-' .. n
  local own = '~' .. key
  for i = 1, #x, 2 do
    if x[i] == 'lock_key' then x[i + 1] = own end
    if x[i] == 'trigger_id' then x[i + 1] = key end
  end
  redis.call('HSET', ns .. 'x:' .. key, unpack(x))
  redis.call('PEXPIRE', ns .. 'x:' .. key, x_ttl)
  redis.call('HSET', ns .. 'l:' .. own, unpack(l))
  redis.call('PEXPIRE', ns .. 'l:' .. own, l_ttl)
  redis.call('ZADD', ns .. 'all', all + n / 1000, key)
  redis.call('ZADD', ns .. 'kept', kept + n / 1000, key)
end
redis.call('HINCRBY', ns .. 'counts', 'succeeded:' .. task, count)
"""


def fill(client: Any, store: RedisStore, namespace: str, count: int) -> None:
    """Let ``store`` have ``count`` finished executions."""
    lease = finished_once(store)
    copy = client.register_script(_COPY)
    for first in range(0, count - 1, _BATCH):
        batch = min(_BATCH, count - 1 - first)
        copy(keys=[f"{{{namespace}}}"], args=[lease.key, lease.lock_key, first, batch])
