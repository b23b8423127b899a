-- Extend leases.
-- use: base lanes

-- ARGV: now, length, then id and token of each.
go_on_when_full()
local length = tonumber(ARGV[2])
local ids = {}
for first = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[first]
end
load(ids)
local answers = {}
for first = 3, #ARGV, 2 do
  local r = rows[ARGV[first]]
  if r and r[TOKEN] ~= '' and r[TOKEN] == ARGV[first + 1] then
    -- A lease that ran out may have put its task into a lane again.
    leave(r)
    r[UNTIL], r[LENGTH] = now + length, length
    r[HOLD] = r[UNTIL]
    if r[STATUS] == SUBMITTING then
      r[HOLD] = r[UNTIL] + math.floor(length / 2)
    end
    change(r)
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = 0
  end
end
finish()
return answers
