-- Say that somebody waits for the change of a task, and return its version ("" if there is no such task).
-- use: base
-- keys: watch

-- ARGV: now, id, for how long.
go_on_when_full()
-- Waits are real time, whatever clock a test gives to the store.
local time = redis.call('TIME')
local real = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', K.watch, '-inf', real)
redis.call('ZADD', K.watch, 'GT', real + tonumber(ARGV[3]), ARGV[2])
local blob = redis.call('HGET', K.tasks, ARGV[2])
if not blob then
  return ''
end
return string.format('%d', ({struct.unpack(ROW, blob)})[VERSION])
