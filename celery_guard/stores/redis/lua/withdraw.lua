-- with: states unit
-- Answers 'missing' apart from 'touched', so that a repeated withdraw knows its own work.
local record = load(ARGV[3])
if not record then return { ARGV[1], 'missing' } end
if record.trigger_id ~= ARGV[4] or record.state ~= 'pending' or record.attempt ~= 0 then
  return { ARGV[1], 'touched' }
end
delete(record)
return { ARGV[1], 'withdrawn' }
