-- What one step sees and changes: the Unit of core/rules, on Redis.
--
--   {ns}:x:<key>   hash    an execution; absent fields have their default
--   {ns}:f:<key>   hash    other triggers of it: id -> "<n>:<message>", no message once answered
--   {ns}:l:<lock>  hash    a lock: token, quiet_until, quiet_by; h:<key> -> token of each that holds it
--   {ns}:q:<lock>  zset    who waits for it: "<number>:<key>" by order
--   {ns}:due       zset    executions by when the dispatcher has to look
--   {ns}:all       zset    executions by when they were recorded
--   {ns}:kept      zset    final executions by how long they are kept
--   {ns}:live      hash    executions that are not final: key -> "<state>:<task>"
--   {ns}:counts    hash    final executions since ever: "<state>:<task>" -> count
--
-- The hashes of executions and locks are the truth. The others are indexes of them: `save` writes them
-- anew each time, and a reader drops an entry that leads nowhere, so a lost index mends itself.
--
-- ARGV[1] is the call's id, given back with the answer; ARGV[2] the time of a test, empty for the server's.

local call = redis.call
local NS = KEYS[1] .. ':'
local DUE, ALL, KEPT, LIVE = NS .. 'due', NS .. 'all', NS .. 'kept', NS .. 'live'

-- How long a final record stays after its time, so that its last readers still find it, and a free lock.
local MARGIN = 3600000
local LOCK_KEEP = 604800000

local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A number as text. Tokens have 16 digits and tostring would round them to 14.
local function int(number)
  return string.format('%.0f', number)
end

-- An optional argument: '' is none, anything else follows a '+'.
local function optional(text)
  if text == '' then return nil end
  return string.sub(text, 2)
end

local function extend(list, more)
  for _, item in ipairs(more) do list[#list + 1] = item end
  return list
end

-- --- records ---------------------------------------------------------------------------------------

local KIND = {
  number = 'n', task = 's', lock_key = 's', trigger_id = 's', fingerprint = 's', message = 's', source = 's',
  overlap = 's', state = 's', reason = 's', by = 's', scheduled_at = 'n', lease = 'n', max_attempts = 'n',
  keep = 'n', unique_for = 'n', once_per_key = 'b', hold = 'b', deadline = 'n', owner = 's', token = 'n',
  expires_at = 'n', attempt = 'n', lost_attempts = 'n', retries = 'n', triggers = 'n', order = 'n',
  queued = 'b', created_at = 'n', started_at = 'n', finished_at = 'n', keep_until = 'n', due_at = 'n',
  sends = 'n', result = 's', checkpoint = 's', previous = 'n', followers = 'n', unanswered = 'n',
  slots = 'n', throttle = 'n', throttle_failures = 'b', entry = 's', start_by = 'n', not_before = 'n',
  put_off_since = 'n',
}

local DEFAULTS = {
  message = '', source = 'call', overlap = 'skip', state = 'pending', reason = '', lease = 60000,
  max_attempts = 5, keep = 0, unique_for = 0, once_per_key = false, hold = false, attempt = 0,
  lost_attempts = 0, retries = 0, triggers = 1, order = 0, queued = false, created_at = 0, sends = 0,
  followers = 0, unanswered = 0, slots = 1, throttle_failures = false,
}
local defaulted = { __index = DEFAULTS }

local stored_fields = {}

-- The fields of a record as they are in the store now, false where there is none.
local function stored(key)
  local fields = stored_fields[key]
  if fields == nil then
    local flat = call('HGETALL', NS .. 'x:' .. key)
    fields = false
    if #flat > 0 then
      fields = {}
      for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
    end
    stored_fields[key] = fields
  end
  return fields
end

local function fresh(key)
  return setmetatable({ key = key }, defaulted)
end

-- A copy of the record, nil where there is none.
local function load(key)
  local fields = stored(key)
  if not fields then return nil end
  local record = fresh(key)
  for name, text in pairs(fields) do
    local kind = KIND[name]
    if kind == 'n' then
      record[name] = tonumber(text)
    elseif kind == 'b' then
      record[name] = text == '1'
    elseif kind then
      record[name] = text
    end
  end
  return record
end

local function holds(record, owner, token)
  return record.state == 'running' and record.owner == owner and record.token == token
    and record.expires_at ~= nil and now < record.expires_at
end

local function alive(record)
  local held = record.state == 'running' or (record.state == 'retrying' and record.hold)
  return held and record.expires_at ~= nil and now < record.expires_at
end

-- The first of the queue: by order, then by number and key, which the member's text sorts by.
local function member(number, key)
  return string.format('%016.0f', number) .. ':' .. key
end

local function index(record, old)
  local key, final = record.key, FINAL[record.state]
  local was_final = old and FINAL[old.state or 'pending']
  if record.due_at then
    call('ZADD', DUE, int(record.due_at), key)
  elseif not old or old.due_at then
    call('ZREM', DUE, key)
  end
  if old and old.queued == '1'
    and not (record.queued and old.lock_key == record.lock_key and old.number == int(record.number)) then
    call('ZREM', NS .. 'q:' .. old.lock_key, member(tonumber(old.number), key))
  end
  if record.queued then
    call('ZADD', NS .. 'q:' .. record.lock_key, int(record.order), member(record.number, key))
  end
  if not old or old.number ~= int(record.number) then call('ZADD', ALL, int(record.created_at), key) end
  if final then
    call('ZADD', KEPT, int(record.keep_until), key)
    if not was_final then call('HDEL', LIVE, key) end
  else
    call('HSET', LIVE, key, record.state .. ':' .. record.task)
    if was_final then call('ZREM', KEPT, key) end
  end
end

-- Only what is final and owes nobody an answer may go by itself.
local function expire(record, old)
  local x, f = NS .. 'x:' .. record.key, NS .. 'f:' .. record.key
  if FINAL[record.state] and not record.due_at then
    local ttl = int(math.max(record.keep_until - now, 0) + MARGIN)
    call('PEXPIRE', x, ttl)
    if record.followers > 0 then call('PEXPIRE', f, ttl) end
  elseif old and FINAL[old.state or 'pending'] then
    call('PERSIST', x)
    if record.followers > 0 then call('PERSIST', f) end
  end
end

local function save(record)
  local old = stored(record.key)
  -- Nobody sends these again; a failed one may be replayed.
  if FINAL[record.state] and not REOPENABLE[record.state] and not record.due_at then record.message = nil end
  local fields, set, gone = {}, {}, {}
  for name, value in pairs(record) do
    local kind = KIND[name]
    if kind and value ~= DEFAULTS[name] then
      local text = value
      if kind == 'n' then text = int(value) elseif kind == 'b' then text = '1' end
      fields[name] = text
      if not old or old[name] ~= text then
        set[#set + 1] = name
        set[#set + 1] = text
      end
    end
  end
  for name in pairs(old or {}) do
    if KIND[name] and not fields[name] then gone[#gone + 1] = name end
  end
  local x = NS .. 'x:' .. record.key
  if #set > 0 then call('HSET', x, unpack(set)) end
  if #gone > 0 then call('HDEL', x, unpack(gone)) end
  stored_fields[record.key] = fields
  index(record, old)
  expire(record, old)
end

local function delete(record)
  local key, old = record.key, stored(record.key)
  call('DEL', NS .. 'x:' .. key, NS .. 'f:' .. key)
  call('ZREM', DUE, key)
  call('ZREM', ALL, key)
  call('ZREM', KEPT, key)
  call('HDEL', LIVE, key)
  if old and old.queued == '1' then
    call('ZREM', NS .. 'q:' .. old.lock_key, member(tonumber(old.number), key))
  end
  stored_fields[key] = false
end

-- Delete final records whose time and margin are over. Each one that becomes final takes two old ones
-- along, so the indexes stay as small as what is kept, without anybody's help.
local function collect(limit)
  for _, key in ipairs(call('ZRANGEBYSCORE', KEPT, '-inf', int(now - MARGIN), 'LIMIT', 0, limit)) do
    if not call('HGET', NS .. 'x:' .. key, 'due_at') then delete(fresh(key)) end
  end
end

local function moved(record)
  if FINAL[record.state] then
    call('HINCRBY', NS .. 'counts', record.state .. ':' .. record.task, 1)
    collect(2)
  end
end

-- --- locks and their queues ------------------------------------------------------------------------

local locks = {}

local function lock(lock_key)
  local known = locks[lock_key]
  if not known then
    known = { lock_key = lock_key, holders = {}, given = {}, stored = {}, token = 0, quiet_until = 0 }
    local flat = call('HGETALL', NS .. 'l:' .. lock_key)
    for i = 1, #flat, 2 do
      local name, value = flat[i], flat[i + 1]
      if name == 'quiet_by' then
        known.quiet_by = value
      elseif string.sub(name, 1, 2) == 'h:' then
        local key = string.sub(name, 3)
        known.holders[#known.holders + 1] = key
        known.given[key] = tonumber(value)
        known.stored[key] = known.given[key]
      else
        known[name] = tonumber(value)
      end
    end
    table.sort(known.holders, function(a, b) return known.given[a] < known.given[b] end)
    locks[lock_key] = known
  end
  return known
end

-- A free lock may be forgotten after days: its tokens follow the time, so the next one is higher all the same.
local function save_lock(this)
  local name = NS .. 'l:' .. this.lock_key
  local set, gone, held = { 'token', int(this.token) }, {}, {}
  for _, key in ipairs(this.holders) do
    held[key] = this.given[key]
    if this.stored[key] ~= held[key] then extend(set, { 'h:' .. key, int(held[key]) }) end
  end
  for key in pairs(this.stored) do
    if not held[key] then gone[#gone + 1] = 'h:' .. key end
  end
  if this.quiet_by then extend(set, { 'quiet_until', int(this.quiet_until), 'quiet_by', this.quiet_by }) end
  call('HSET', name, unpack(set))
  if #gone > 0 then call('HDEL', name, unpack(gone)) end
  this.stored = held
  if #this.holders > 0 then
    call('PERSIST', name)
  else
    call('PEXPIRE', name, int(math.max(LOCK_KEEP, this.quiet_until - now)))
  end
end

-- The first of the queue: by order, then by number and key.
local function heads(lock_key, count)
  local queue, found = NS .. 'q:' .. lock_key, {}
  while true do
    local members = call('ZRANGE', queue, #found, count - 1)
    for _, first in ipairs(members) do
      local record = load(string.sub(first, 18))
      if record and record.queued and record.lock_key == lock_key
        and member(record.number, record.key) == first then
        found[#found + 1] = record
      else
        call('ZREM', queue, first)
        break -- the places of the others have changed
      end
    end
    if #members == 0 or #found >= count then return found end
  end
end

local function queued(lock_key)
  return call('ZCARD', NS .. 'q:' .. lock_key)
end

-- --- other triggers of an execution ----------------------------------------------------------------

-- The message of one, '' once answered, nil where it never joined.
local function follower(record, id)
  if record.followers == 0 then return nil end
  local text = call('HGET', NS .. 'f:' .. record.key, id)
  if not text then return nil end
  return string.sub(text, string.find(text, ':', 1, true) + 1)
end

local function set_follower(record, id, message)
  local before = follower(record, id)
  local place
  if before then
    place = string.match(call('HGET', NS .. 'f:' .. record.key, id), '^%d+')
    if before ~= '' then record.unanswered = record.unanswered - 1 end
  else
    record.followers = record.followers + 1
    place = int(record.followers)
  end
  if message ~= '' then record.unanswered = record.unanswered + 1 end
  call('HSET', NS .. 'f:' .. record.key, id, place .. ':' .. message)
end

-- Forget one that has no answer yet. `followers` counts the places ever given, so no place is given twice.
local function drop_follower(record, id)
  call('HDEL', NS .. 'f:' .. record.key, id)
  record.unanswered = record.unanswered - 1
end

-- Those that have no answer yet, in the order in which they came.
local function unanswered(key)
  local found, flat = {}, call('HGETALL', NS .. 'f:' .. key)
  for i = 1, #flat, 2 do
    local text = flat[i + 1]
    local colon = string.find(text, ':', 1, true)
    if colon < #text then
      found[#found + 1] =
        { id = flat[i], place = tonumber(string.sub(text, 1, colon - 1)), message = string.sub(text, colon + 1) }
    end
  end
  table.sort(found, function(a, b) return a.place < b.place end)
  return found
end
