-- Counts, rules and lines at a glance.
-- use: base workers
-- keys: lanes ready blocked rules

-- ARGV: now, how long a worker is believed.
-- Lines longer than this are judged by their first lanes.
local MOST = 5000

local function split_lane(value)
  return tonumber(string.sub(value, 17, 17)), dec(value, 1), dec(value, 9)
end

local oldest = -1
local has_ageing = tonumber(redis.call('HGET', K.meta, 'ageing') or '0') > 0
local function look_at(side, k1, k3)
  local at = k1
  if side == 0 then
    if has_ageing then
      return
    end
    at = k3
  end
  if at <= now and (oldest < 0 or at < oldest) then
    oldest = at
  end
end

local fields = {}
for _, member in ipairs(redis.call('ZRANGEBYLEX', K.ready, '[0', '(3', 'LIMIT', 0, MOST)) do
  local side = tonumber(string.sub(member, 1, 1))
  local at = string.find(member, '\0', 1, true) + 1
  if side == 0 then
    look_at(0, 0, dec(member, string.find(member, '\0', at + 8, true) + 1))
  else
    look_at(side, dec(member, at), 0)
  end
end
local blocked = redis.call('ZRANGE', K.blocked, 0, MOST - 1)
for number = 1, #blocked do
  fields[number] = 'i' .. string.sub(blocked[number], -6)
end
for _, value in ipairs(read_all(K.lanes, fields)) do
  if value then
    look_at(split_lane(value))
  end
end

local statuses = {}
for status = 1, 9 do
  statuses[status] = 'count' .. status
end
local counted = redis.call('HMGET', K.meta, unpack(statuses))
local workers = workers_seen(ARGV[2])
return {
  string.format('%d', now),
  counted,
  redis.call('HGETALL', K.rules),
  workers,
  redis.call('ZLEXCOUNT', K.index, '[d', '[d\255'),
  redis.call('ZLEXCOUNT', K.ready, '[0', '(3'),
  redis.call('ZCARD', K.blocked),
  string.format('%d', oldest),
}
