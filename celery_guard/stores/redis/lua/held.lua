-- The clause that every write to held state must pass, for the operations that need nothing else of a record.

local HELD = { 'state', 'owner', 'token', 'expires_at', 'lease', 'overlap', 'lock_key' }

-- What says who owns an execution, without its texts; nil where the record is gone.
local function glance(key)
  local fields = call('HMGET', NS .. 'x:' .. key, unpack(HELD))
  if not fields[7] then return nil end
  return {
    key = key,
    state = fields[1] or DEFAULTS.state,
    owner = fields[2] or nil,
    token = tonumber(fields[3] or nil),
    expires_at = tonumber(fields[4] or nil),
    lease = tonumber(fields[5] or DEFAULTS.lease),
    overlap = fields[6] or DEFAULTS.overlap,
    lock_key = fields[7],
  }
end

-- Why owner and token do not hold the execution, nil where they do.
local function _refused(record, owner, token)
  if not record then return { 'refused', 'missing', false } end
  if not holds(record, owner, token) then
    local same = record.owner == owner and record.token == token
    if record.state == 'running' and same then return { 'refused', 'expired', record.state } end
    return { 'refused', 'superseded', record.state }
  end
  -- Beyond core/rules, whose locks cannot get lost: an execution that runs under a lock which does not name it
  -- no longer excludes anybody.
  if record.overlap ~= 'allow' then
    if call('HEXISTS', NS .. 'l:' .. record.lock_key, 'h:' .. record.key) == 0 then
      local others = #lock(record.lock_key).holders > 0
      return { 'refused', others and 'superseded' or 'missing', record.state }
    end
  end
  return nil
end
