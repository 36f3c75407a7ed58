-- with: states unit
local deleted = 0
for _, key in ipairs(call('ZRANGEBYSCORE', KEPT, '-inf', int(now), 'LIMIT', 0, tonumber(ARGV[3]))) do
  if load(key) then deleted = deleted + 1 end
  delete(fresh(key))
end
return { ARGV[1], deleted }
