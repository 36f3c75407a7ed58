-- with: states unit
-- "<state>:<task>" and how many, in turns: final ones since ever, others now.
local flat = call('HGETALL', NS .. 'counts')
local live = {}
for _, text in ipairs(call('HVALS', LIVE)) do live[text] = (live[text] or 0) + 1 end
for text, count in pairs(live) do
  flat[#flat + 1] = text
  flat[#flat + 1] = int(count)
end
return { ARGV[1], flat }
