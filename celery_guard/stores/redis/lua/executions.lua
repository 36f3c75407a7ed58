-- with: states unit
-- One page of the index, newest first: from a place on, so many, fields to show (the first is `number`, the
-- second `task`). Answers how many entries of the index it saw, then the key and the fields of each.
local task, start, size = optional(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local keys = call('ZREVRANGE', ALL, start, start + size - 1)
local found = {}
for _, key in ipairs(keys) do
  local fields = call('HMGET', NS .. 'x:' .. key, unpack(ARGV, 6))
  if fields[1] and (not task or fields[2] == task) then found[#found + 1] = { key, fields } end
end
return { ARGV[1], #keys, found }
