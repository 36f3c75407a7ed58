-- with: states unit rules
local trigger, resend_after = trigger_at(3), tonumber(ARGV[24])
local record = load(trigger.key)
if record and (not FINAL[record.state] or _answers(record, trigger)) then
  if _mismatch(record, trigger) then return { ARGV[1], { 'mismatch', record.trigger_id } } end
  return { ARGV[1], { 'standing', record.trigger_id, record.state } }
end
if record and trigger.reopen and REOPENABLE[record.state] then
  if _mismatch(record, trigger) then return { ARGV[1], { 'mismatch', record.trigger_id } } end
  record = _reopened(record, trigger)
else
  record = _new(trigger, record)
end
record.due_at = now + resend_after
save(record)
return { ARGV[1], { 'reserved' } }
