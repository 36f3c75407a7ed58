-- with: states unit rules begin_rules
local trigger, owner, retries = trigger_at(3), ARGV[24], tonumber(ARGV[25])

local GENERATION = 1000000

local function _goes_on(record)
  return record.trigger_id == trigger.trigger_id and record.state == 'succeeded'
    and math.floor(retries / GENERATION) > math.floor(record.retries / GENERATION)
end

local function begin()
  local this = lock(trigger.lock_key)
  local record = load(trigger.key)
  if not record or (FINAL[record.state] and (not _answers(record, trigger) or _goes_on(record))) then
    if record and trigger.reopen and REOPENABLE[record.state] then
      if _mismatch(record, trigger) then return begun({ 'mismatch', record.trigger_id }) end
      record = _reopened(record, trigger)
    else
      record = _new(trigger, record)
    end
    return _acquire(this, record, trigger, owner, retries)
  end
  if _mismatch(record, trigger) then return begun({ 'mismatch', record.trigger_id }) end
  if FINAL[record.state] then return begun(_answer(record, trigger)) end
  if record.trigger_id ~= trigger.trigger_id then
    if not follower(record, trigger.trigger_id) then record.triggers = record.triggers + 1 end
    set_follower(record, trigger.trigger_id, trigger.message)
    save(record)
    return begun({ 'joined', record.trigger_id })
  end
  if retries < record.retries or record.state == 'uncertain' then
    return begun({ 'in_flight', record.state })
  end
  if record.state == 'running' then
    if alive(record) then
      if record.owner == owner then return begun(_acquired(record)) end
      return begun({ 'in_flight', record.state })
    end
    local dispatches = _lost(lock(record.lock_key), record, 'its lease ended')
    if FINAL[record.state] then return begun(_answer(record, trigger), dispatches) end
    local acquired = _acquire(this, record, trigger, owner, retries)
    return begun(acquired[1], extend(dispatches, acquired[2]))
  end
  return _acquire(this, record, trigger, owner, retries)
end

return { ARGV[1], begin() }
