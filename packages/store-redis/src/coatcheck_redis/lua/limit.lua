-- Set limits, and have the lanes that they may let go looked at again.
-- use: base lanes
-- keys: rules

-- ARGV: now, "1" to set only what is missing, then field and value of each.
go_on_when_full()

-- Every resource of one kind that blocks lanes: one step for each, however many lanes wait for it.
local function wake_kind(prefix)
  local from, to = '[' .. prefix, '[' .. prefix .. '\255'
  while true do
    local member = redis.call('ZRANGEBYLEX', K.blocked, from, to, 'LIMIT', 0, 1)[1]
    if not member then
      return
    end
    local key = string.sub(member, 1, string.find(member, '\0', 1, true) - 1)
    wake_at(key, 0)
    from = '(' .. key .. '\0\255'
  end
end

local kinds = {r = 'rate', l = 'live'}
local flags = {r = 'rates', l = 'lives'}
for first = 3, #ARGV, 2 do
  local field = ARGV[first]
  local letter, subject = string.sub(field, 1, 1), string.sub(field, 2)
  redis.call(ARGV[2] == '1' and 'HSETNX' or 'HSET', K.rules, field, ARGV[first + 1])
  redis.call('HSET', K.meta, flags[letter], '1')
  local key = kinds[letter] .. '\31' .. subject
  if string.find(subject .. '\31', '\31*\31', 1, true) then
    -- A default holds for every name without a limit of its own.
    wake_kind(string.match(key, '^[^\31]*\31[^\31]*\31'))
  else
    wake_now({[key] = true})
  end
end
has_work = #ARGV > 2
announce()
return 0
