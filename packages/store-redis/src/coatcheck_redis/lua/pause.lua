-- Stop submits of a provider, account or tenant, or let them go on.
-- use: base lanes
-- keys: rules

-- ARGV: now, "1" to stop, kind, name, by, reason. Answers whether something was paused before.
go_on_when_full()
local field = 'p' .. key_of(ARGV[3], ARGV[4])
if ARGV[2] == '1' then
  local value = struct.pack('<i8I4', now, #ARGV[5]) .. ARGV[5] .. ARGV[6]
  redis.call('HSET', K.meta, 'pauses', '1')
  return 1 - redis.call('HSET', K.rules, field, value)
end
local gone = redis.call('HDEL', K.rules, field)
wake_now({[key_of('pause', ARGV[3], ARGV[4])] = true})
announce()
return gone
