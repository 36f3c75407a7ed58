-- with: states unit
-- Of what is not withdrawn it answers why, so that a repeated withdraw knows its own work.
local record = load(ARGV[3])
if not record then return { ARGV[1], 'missing' } end
if record.trigger_id ~= ARGV[4] then return { ARGV[1], 'other' } end
if record.state ~= 'pending' or record.attempt ~= 0 or record.queued then return { ARGV[1], 'touched' } end
local heir = record.unanswered > 0 and unanswered(record.key)[1]
if heir then
  -- It was told that the record keeps it, so the record goes on as its own.
  record.trigger_id, record.message = heir.id, heir.message
  drop_follower(record, heir.id)
  record.due_at = now
  save(record)
else
  delete(record)
end
return { ARGV[1], 'withdrawn' }
