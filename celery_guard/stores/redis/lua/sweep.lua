-- with: states unit rules begin_rules
local dispatcher, ttl, limit = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local function _attend_waiting(this, record)
  if record.deadline and now >= record.deadline then
    local dispatches = _end_passively(record, 'lock_timeout', 'it waited as long as wait_for allows')
    return extend(dispatches, _wake(this))
  end
  if record.start_by and record.attempt == 0 and now >= record.start_by then
    return extend(_end_passively(record, 'expired', WAITED_TOO_LONG), _wake(this))
  end
  record.due_at = look_again(record)
  save(record)
  return _wake(this)
end

local function _attend_final(record)
  if record.sends > MAX_NOTICES then
    record.due_at = nil
    save(record)
    return {}
  end
  local sent = {}
  if record.state ~= 'succeeded' and record.state ~= 'failed' then sent[1] = dispatch(record, record.state) end
  extend(sent, _notice(record))
  record.due_at = _backoff(record)
  save(record)
  return sent
end

local function attend(key)
  local record = load(key)
  if not record then
    -- The store lost it. Triggers that had joined it have nobody else to answer them: they start anew.
    local sent = {}
    for _, other in ipairs(unanswered(key)) do sent[#sent + 1] = { key, other.id, other.message, 'joined' } end
    delete(fresh(key))
    return sent, false
  end
  if not record.due_at or record.due_at > now then
    save(record) -- the index said otherwise
    return {}, false
  end
  local this = lock(record.lock_key)
  if record.state == 'running' then return _lost(this, record, 'its lease ended'), true end
  if record.state == 'waiting' then return _attend_waiting(this, record), false end
  record.sends = record.sends + 1
  if FINAL[record.state] then return _attend_final(record), false end
  if record.state == 'uncertain' then
    record.due_at = nil
    save(record)
    return {}, false
  end
  record.due_at = _backoff(record)
  -- See core/rules: one that does not come steps aside.
  local steps_aside = record.queued and record.state == 'pending' and record.sends > MAX_NOTICES
  if steps_aside then record.queued = false end
  save(record)
  local sent = { dispatch(record, record.state) }
  if steps_aside then extend(sent, _wake(this)) end
  return sent, false
end

local seat = NS .. 'dispatcher'
local sitting = call('HMGET', seat, 'name', 'until')
if sitting[1] and sitting[1] ~= dispatcher and tonumber(sitting[2]) > now then
  return { ARGV[1], 0, {}, {}, 0 }
end
call('HSET', seat, 'name', dispatcher, 'until', int(now + ttl))
local dispatches, lost = {}, {}
local due = call('ZRANGEBYSCORE', DUE, '-inf', int(now), 'LIMIT', 0, limit)
for _, key in ipairs(due) do
  local sent, gone = attend(key)
  extend(dispatches, sent)
  if gone then lost[#lost + 1] = key end
end
collect(limit)
return { ARGV[1], 1, dispatches, lost, (limit > 0 and #due >= limit) and 1 or 0 }
