-- Delete a portion of the tasks that ended long enough ago. Rows whose job may go on are not in the index.
-- use: base notify
-- keys: records params results dedupe turns

-- ARGV: now, how many, then status and age of each.
go_on_when_full()
local limit = tonumber(ARGV[2])
local gone = {}
for first = 3, #ARGV, 2 do
  local status = tonumber(ARGV[first])
  local prefix = 'e' .. string.char(status)
  local members = {}
  if #gone < limit then
    members = redis.call('ZRANGEBYLEX', K.index, '[' .. prefix,
      '[' .. prefix .. enc(now - tonumber(ARGV[first + 1])) .. '\255', 'LIMIT', 0, limit - #gone)
  end
  local ids, index, keys = {}, {}, {}
  for number = 1, #members do
    ids[number] = string.sub(members[number], 11)
    index[number] = members[number]
  end
  load(ids)
  for number = 1, #ids do
    local r = rows[ids[number]]
    gone[#gone + 1] = ids[number]
    if r then
      local tenant = parts(r[NAMES])[4]
      index[#index + 1] = 'a' .. enc(r[SEQ]) .. ids[number]
      if tenant ~= '' then
        index[#index + 1] = 'o' .. tenant .. '\0' .. enc(r[SEQ]) .. ids[number]
      end
      if r[DEDUPE] ~= '' then
        keys[#keys + 1] = tenant .. '\0' .. r[DEDUPE]
      end
      count(status, -1)
    end
  end
  call_all('HDEL', K.tasks, ids)
  call_all('HDEL', K.records, ids)
  call_all('HDEL', K.params, ids)
  call_all('HDEL', K.results, ids)
  call_all('HDEL', K.dedupe, keys)
  call_all('ZREM', K.index, index)
end
write_counts()

-- Tenants that wait for nothing and have no turn to remember are forgotten, a portion at a time.
local last = tonumber(redis.call('HGET', K.meta, 'turn') or '0')
local part = redis.call('HSCAN', K.turns, redis.call('HGET', K.meta, 'scan') or '0', 'COUNT', 100)
redis.call('HSET', K.meta, 'scan', part[1])
for number = 1, #part[2], 2 do
  local field = part[2][number]
  if string.sub(field, 1, 1) == 't' then
    local turn, n = struct.unpack('<i8i8', part[2][number + 1])
    if n == 0 and turn <= last then
      redis.call('HDEL', K.turns, field)
    end
  end
end
notify(gone)
return #gone
