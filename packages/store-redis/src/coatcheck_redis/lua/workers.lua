-- What the workers that were seen lately can do.
-- keys: workers seen

local function workers_seen(within)
  local found = {}
  local after = '(' .. string.format('%d', now - tonumber(within))
  for number, worker in ipairs(redis.call('ZRANGEBYSCORE', K.seen, after, '+inf')) do
    found[number] = redis.call('HGET', K.workers, 's' .. worker)
  end
  return found
end
