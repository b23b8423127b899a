-- The first script of every store: the time, the layout of the namespace, and its ageing.
-- use: base

-- ARGV: now, the layout of this version, ageing or "".
local layout = redis.call('HGET', K.meta, 'layout')
if not layout then
  go_on_when_full()
  redis.call('HSET', K.meta, 'layout', ARGV[2])
elseif tonumber(layout) ~= tonumber(ARGV[2]) then
  return {'layout', layout}
end
if ARGV[3] ~= '' then
  go_on_when_full()
  redis.call('HSET', K.meta, 'ageing', ARGV[3])
end
return {'ok', string.format('%d', now)}
