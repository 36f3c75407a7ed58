-- with: states unit held
local record = glance(ARGV[3])
local refusal = _refused(record, ARGV[4], tonumber(ARGV[5]))
if refusal then return { ARGV[1], refusal } end
call('HSET', NS .. 'x:' .. record.key, 'checkpoint', ARGV[6])
return { ARGV[1], { 'done', record.state, {} } }
