-- with: states unit held
local record = glance(ARGV[3])
return { ARGV[1], _refused(record, ARGV[4], tonumber(ARGV[5])) or { 'done', record.state, {} } }
