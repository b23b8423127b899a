-- Set limits, and have every blocked lane looked at again.
-- use: base lanes
-- keys: rules

-- ARGV: now, "1" to set only what is missing, then field and value of each.
go_on_when_full()
for first = 3, #ARGV, 2 do
  redis.call(ARGV[2] == '1' and 'HSETNX' or 'HSET', K.rules, ARGV[first], ARGV[first + 1])
  redis.call('HSET', K.meta, string.sub(ARGV[first], 1, 1) == 'r' and 'rates' or 'lives', '1')
end
-- One step for each resource that blocks, however many lanes wait for it.
local from = '-'
while true do
  local member = redis.call('ZRANGEBYLEX', K.blocked, from, '+', 'LIMIT', 0, 1)[1]
  if not member then
    break
  end
  local key = string.sub(member, 1, string.find(member, '\0', 1, true) - 1)
  wake_at(key, 0)
  from = '(' .. key .. '\0\255'
end
has_work = true
announce()
return 0
