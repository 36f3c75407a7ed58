-- with: states unit rules
local trigger = trigger_at(3)
local state, reason, delivery, retries = ARGV[24], ARGV[25], optional(ARGV[26]), tonumber(ARGV[27])
local this = lock(trigger.lock_key)
local record = load(trigger.key)
if not record or (FINAL[record.state] and not _answers(record, trigger)) then
  record = _new(trigger, record)
elseif FINAL[record.state] or record.trigger_id ~= trigger.trigger_id or retries < record.retries
  or (record.state == 'running' and not (delivery and owned_by(record, delivery)))
  or not may_move(record.state, state) then
  return { ARGV[1], refused('superseded', record.state) }
end
_move(record, state, reason)
local dispatches = _notice(record)
save(record)
return { ARGV[1], _released(this, record, dispatches) }
