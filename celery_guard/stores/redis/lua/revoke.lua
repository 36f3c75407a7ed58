-- with: states unit rules
local record = load(ARGV[3])
if not record then return { ARGV[1], refused('missing') } end
if FINAL[record.state] then return { ARGV[1], refused('superseded', record.state) } end
local this = lock(record.lock_key)
return { ARGV[1], _released(this, record, _end_passively(record, 'revoked', ARGV[4])) }
