-- with: states unit held rules
local key, lock_key, owner, token = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local state, reason, result, message = ARGV[7], ARGV[8], optional(ARGV[9]), optional(ARGV[10])
local retries, delay = tonumber(ARGV[11]), tonumber(ARGV[12])

local function finish()
  local this = lock(lock_key)
  local record = load(key)
  if record and record.state == state and record.owner == owner and record.token == token then
    return done(record.state) -- the answer to an accepted finish was lost
  end
  local refusal = _refused(record, owner, token)
  if refusal then return refusal end
  _move(record, state, reason)
  record.result = result
  local dispatches = {}
  if state == 'retrying' then
    record.retries = retries
    if message and message ~= '' then record.message = message end
    record.due_at = now + delay + RESEND
    if record.hold then record.expires_at = now + delay + RESEND_MAX end
  elseif state == 'interrupted' then
    record.queued = record.overlap == 'wait' or record.overlap == 'queue'
    record.due_at = now + RESEND
    dispatches[1] = dispatch(record, 'interrupted')
  elseif FINAL[state] then
    dispatches = _notice(record)
  else
    record.due_at = nil
  end
  save(record)
  if record.throttle and (state == 'succeeded' or (state == 'failed' and record.throttle_failures)) then
    this.quiet_until, this.quiet_by = now + record.throttle, record.key
  end
  if not (state == 'retrying' and record.hold) then extend(dispatches, _release(this, record)) end
  return done(record.state, dispatches)
end

return { ARGV[1], finish() }
