-- with: states unit
-- The fields to show are the arguments from the fourth on; answers none where there is no record.
local fields = call('HMGET', NS .. 'x:' .. ARGV[3], unpack(ARGV, 4))
return { ARGV[1], fields[1] and fields }
