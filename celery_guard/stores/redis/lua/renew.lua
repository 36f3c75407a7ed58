-- with: states unit held
-- Any number of leases: key, owner, token of each.
local answers = {}
for i = 3, #ARGV, 3 do
  local record = glance(ARGV[i])
  local refusal = _refused(record, ARGV[i + 1], tonumber(ARGV[i + 2]))
  if not refusal then
    local expires_at = int(now + record.lease)
    call('HSET', NS .. 'x:' .. record.key, 'expires_at', expires_at, 'due_at', expires_at)
    call('ZADD', DUE, expires_at, record.key)
  end
  answers[#answers + 1] = refusal or { 'done', record.state, {} }
end
return { ARGV[1], answers }
