-- The rules of core/rules for begin, in the same words.

local function begun(answer, dispatches)
  return { answer, dispatches or {} }
end

local function _acquired(record)
  return {
    'acquired', record.key, record.lock_key, record.owner, int(record.token), int(record.lease),
    int(record.attempt), int(record.expires_at), record.checkpoint or false,
  }
end

local function answered(record, result)
  return { 'answered', record.state, record.reason, result or false, record.trigger_id, record.by or false }
end

local function _answer(record, trigger)
  local text = follower(record, trigger.trigger_id)
  if (text and text ~= '') or (record.due_at and trigger.trigger_id == record.trigger_id) then
    if text then set_follower(record, trigger.trigger_id, '') end
    -- See core/rules: its own message wants an answer too.
    local owed = trigger.trigger_id ~= record.trigger_id and record.state ~= 'succeeded' and record.state ~= 'failed'
    if not owed and record.unanswered == 0 then record.due_at = nil end
    save(record)
  end
  return answered(record, record.result)
end

local function _start(this, record, trigger, owner, retries, beside)
  -- See core/rules: by the clock in microseconds, and by one at least.
  this.token = math.max(this.token + 1, now * 1000)
  if trigger.overlap ~= 'allow' then
    this.holders = {}
    for _, holder in ipairs(beside or {}) do
      if holder.key ~= record.key then this.holders[#this.holders + 1] = holder.key end
    end
    this.holders[#this.holders + 1] = record.key
    this.given[record.key] = this.token
  end
  save_lock(this)
  _options(record, trigger)
  _move(record, 'running')
  record.queued = false
  record.message, record.retries = trigger.message, retries
  record.owner, record.token = owner, this.token
  record.attempt = record.attempt + 1
  record.sends = 0
  record.deadline, record.not_before, record.put_off_since = nil, nil, nil
  record.started_at = now
  record.expires_at = now + record.lease
  record.due_at = record.expires_at
  save(record)
  return begun(_acquired(record))
end

local function look_again(record)
  -- See core/rules: a later attempt would be due in every sweep.
  local start_by = record.attempt == 0 and record.start_by or nil
  return math.min(earliest(record.deadline, start_by) or (now + LOOK_AGAIN), now + LOOK_AGAIN)
end

local function _park(record, trigger)
  _move(record, 'waiting', 'the lock is held')
  record.queued = true
  if not record.deadline and trigger.wait_for then record.deadline = now + trigger.wait_for end
  record.due_at = look_again(record)
  save(record)
end

local function _turned(record, state, reason, by)
  _move(record, state, reason, by)
  local dispatches = _notice(record)
  save(record)
  return begun(answered(record), dispatches)
end

local function _overdue(record, delay)
  return record.state == 'pending' and record.put_off_since and now >= record.put_off_since + delay
end

local function _put_off(record, trigger, delay, since, free)
  if not since and free then since = now end
  record.put_off_since = since
  if trigger.debounce then
    record.not_before = earliest(now + trigger.debounce, since and since + delay)
  end
end

local function _coalesce(this, record, trigger, holders)
  local delay = trigger.max_delay or math.max(MAX_DELAY, 10 * (trigger.debounce or 0))
  local rivals = {}
  for _, rival in ipairs(heads(this.lock_key, 3)) do
    if rival.key ~= record.key and rival.overlap == 'coalesce' then rivals[#rivals + 1] = rival end
  end
  if rivals[1] and rivals[1].order <= record.order and _overdue(rivals[1], delay) then table.remove(rivals, 1) end
  local stands = rivals[#rivals]
  local newer = stands
  if not newer then
    for _, holder in ipairs(holders) do
      if not newer or holder.order > newer.order then newer = holder end
    end
  end
  if newer and newer.order > record.order then
    return _turned(record, 'coalesced', newer.key .. ' is newer and stands for it', newer.key)
  end
  if stands and trigger.oldest and record.attempt == 0 then
    _put_off(stands, trigger, delay, stands.put_off_since, #holders == 0)
    if stands.state == 'waiting' then stands.due_at = look_again(stands) end
    save(stands)
    return _turned(record, 'coalesced', stands.key .. ' runs for it, too', stands.key)
  end
  local dispatches = {}
  if record.attempt == 0 and not record.queued then
    _put_off(record, trigger, delay, stands and stands.put_off_since, #holders == 0)
  end
  if stands then
    dispatches =
      _end_passively(stands, 'coalesced', record.key .. ' is newer and stands for it', record.key)
  end
  if record.state ~= 'waiting' then _move(record, 'waiting', 'one run follows the running one') end
  record.queued = true
  record.due_at = look_again(record)
  save(record)
  return begun({ 'parked', '0' }, dispatches)
end

local function _replace(this, record, trigger, owner, retries, holders)
  local oldest = extend({}, holders)
  table.sort(oldest, function(a, b)
    if a.order ~= b.order then return a.order < b.order end
    return member(a.number, a.key) < member(b.number, b.key)
  end)
  local many = #oldest - trigger.slots + 1
  local last = oldest[many]
  if last.order > record.order then
    return _turned(record, 'skipped', last.key .. ' is newer and holds the lock', last.key)
  end
  local dispatches, beside = {}, {}
  for i, holder in ipairs(oldest) do
    if i <= many then
      local state = 'skipped'
      if holder.state == 'running' then state = 'replaced' end
      extend(dispatches, _end_passively(holder, state, record.key .. ' took its place', record.key))
    else
      beside[#beside + 1] = holder
    end
  end
  return begun(_start(this, record, trigger, owner, retries, beside)[1], dispatches)
end

-- Why there is no room, and who is in the way.
local function _blocker(this, record, holders)
  local first = holders[1]
  if not first then
    first = heads(this.lock_key, 1)[1]
    if first and first.key == record.key then first = nil end
  end
  if first then return 'held by ' .. first.key, first.key end
  return 'throttled after ' .. (this.quiet_by or 'None'), this.quiet_by
end

local function _second_trigger(this, record, trigger, owner, retries, holders)
  _options(record, trigger)
  record.message, record.retries = trigger.message, retries
  if trigger.overlap == 'replace' and #holders >= trigger.slots then
    return _replace(this, record, trigger, owner, retries, holders)
  end
  if trigger.overlap == 'coalesce' then return _coalesce(this, record, trigger, holders) end
  local why, by = _blocker(this, record, holders)
  if trigger.overlap == 'wait' or trigger.overlap == 'queue' then
    local ahead = queued(this.lock_key)
    if record.queued then
      if record.state ~= 'waiting' then _park(record, trigger) end
      return begun({ 'parked', int(ahead - 1) })
    end
    if trigger.max_queue and record.attempt == 0 and ahead >= trigger.max_queue then
      return _turned(record, 'skipped', 'the queue is full (' .. int(ahead) .. ' waiting)', by)
    end
    _park(record, trigger)
    return begun({ 'parked', int(ahead) })
  end
  return _turned(record, 'skipped', why, by)
end

-- Whether a first attempt may not start although there is room: throttled, or not yet debounced.
local function _closed_to(this, record, trigger)
  if record.attempt ~= 0 then return false end
  if trigger.throttle and this.quiet_until > now then return true end
  return trigger.debounce ~= nil and (not record.not_before or record.not_before > now)
end

local function _acquire(this, record, trigger, owner, retries)
  if record.attempt == 0 and trigger.start_by and now >= trigger.start_by then
    _options(record, trigger)
    local expired = _turned(record, 'expired', TOO_LATE)
    return begun(expired[1], extend(expired[2], _wake(this)))
  end
  if trigger.overlap == 'allow' then return _start(this, record, trigger, owner, retries) end
  local holders = _holders(this)
  for _, holder in ipairs(holders) do
    if holder.key == record.key then -- it kept the lock between two tries
      return _start(this, record, trigger, owner, retries, holders)
    end
  end
  local room = trigger.slots - #holders
  local first = heads(this.lock_key, math.max(room, 1))
  local closed = _closed_to(this, record, trigger)
  if room > 0 and not closed then
    local may = #first < room
    for _, other in ipairs(first) do may = may or other.key == record.key end
    if may then return _start(this, record, trigger, owner, retries, holders) end
  end
  local second = _second_trigger(this, record, trigger, owner, retries, holders)
  if room <= 0 then return second end
  return begun(second[1], extend(second[2], _wake(this)))
end
