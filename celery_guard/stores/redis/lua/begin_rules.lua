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

local function _start(this, record, trigger, owner, retries)
  -- See core/rules: by the clock in microseconds, and by one at least.
  this.token = math.max(this.token + 1, now * 1000)
  if trigger.overlap ~= 'allow' then this.holder = record.key end
  save_lock(this)
  _options(record, trigger)
  _move(record, 'running')
  record.queued = false
  record.message, record.retries = trigger.message, retries
  record.owner, record.token = owner, this.token
  record.attempt = record.attempt + 1
  record.sends = 0
  record.deadline = nil
  record.started_at = now
  record.expires_at = now + record.lease
  record.due_at = record.expires_at
  save(record)
  return begun(_acquired(record))
end

local function look_again(record)
  return math.min(record.deadline or (now + LOOK_AGAIN), now + LOOK_AGAIN)
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

local function _coalesce(this, record, first, blocker)
  if first and first.key == record.key then first = nil end
  local newer = first or blocker
  if newer.order > record.order then
    return _turned(record, 'coalesced', newer.key .. ' is newer and stands for it', newer.key)
  end
  local dispatches = {}
  if first then
    dispatches =
      _end_passively(first, 'coalesced', record.key .. ' is newer and stands for it', record.key)
  end
  if record.state ~= 'waiting' then _move(record, 'waiting', 'one run follows the running one') end
  record.queued = true
  record.due_at = now + LOOK_AGAIN
  save(record)
  if not _holder(this) then extend(dispatches, _wake(this)) end
  return begun({ 'parked', '0' }, dispatches)
end

local function _replace(this, record, trigger, owner, retries, holder)
  if holder.order > record.order then
    return _turned(record, 'skipped', holder.key .. ' is newer and holds the lock', holder.key)
  end
  local state = 'skipped'
  if holder.state == 'running' then state = 'replaced' end
  local dispatches = _end_passively(holder, state, record.key .. ' took its place', record.key)
  return begun(_start(this, record, trigger, owner, retries)[1], dispatches)
end

local function _second_trigger(this, record, trigger, owner, retries, holder)
  _options(record, trigger)
  record.message, record.retries = trigger.message, retries
  local first = head(this.lock_key)
  local blocker = holder or first
  if trigger.overlap == 'replace' and holder then
    return _replace(this, record, trigger, owner, retries, holder)
  end
  if trigger.overlap == 'coalesce' then return _coalesce(this, record, first, blocker) end
  if trigger.overlap == 'wait' or trigger.overlap == 'queue' then
    local ahead = queued(this.lock_key)
    if record.queued then
      if record.state ~= 'waiting' then _park(record, trigger) end
      return begun({ 'parked', int(ahead - 1) })
    end
    if trigger.max_queue and record.attempt == 0 and ahead >= trigger.max_queue then
      return _turned(record, 'skipped', 'the queue is full (' .. int(ahead) .. ' waiting)', blocker.key)
    end
    _park(record, trigger)
    return begun({ 'parked', int(ahead) })
  end
  return _turned(record, 'skipped', 'held by ' .. blocker.key, blocker.key)
end

local function _acquire(this, record, trigger, owner, retries)
  if trigger.overlap == 'allow' then return _start(this, record, trigger, owner, retries) end
  local holder = _holder(this)
  if holder and holder.key == record.key then
    return _start(this, record, trigger, owner, retries) -- it kept the lock between two tries
  end
  local first = head(this.lock_key)
  if not holder and (not first or first.key == record.key) then
    return _start(this, record, trigger, owner, retries)
  end
  local dispatches = {}
  if not holder then dispatches = _wake(this) end
  local second = _second_trigger(this, record, trigger, owner, retries, holder)
  return begun(second[1], extend(dispatches, second[2]))
end
