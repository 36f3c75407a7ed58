-- with: states unit rules
local record = load(ARGV[3])
if not record then return { ARGV[1], refused('missing') } end
if record.state ~= 'running' or not owned_by(record, ARGV[4]) then
  return { ARGV[1], refused('superseded', record.state) }
end
local dispatches = _lost(lock(record.lock_key), record, ARGV[5])
return { ARGV[1], done(record.state, dispatches) }
