-- The task that holds a dedupe key.
-- use: base
-- keys: dedupe records

-- ARGV: now, tenant, key.
local held = redis.call('HGET', K.dedupe, ARGV[2] .. '\0' .. ARGV[3])
if not held then
  return {}
end
local id = string.sub(held, 3 + struct.unpack('>I2', held))
return {id, redis.call('HGET', K.tasks, id), redis.call('HGET', K.records, id)}
