-- What is needed to say why tasks wait: the rows, the workers seen lately, and the first limit that refuses each.
-- use: base lanes limits workers

-- ARGV: now, how long a worker is believed, then ids.
local workers = workers_seen(ARGV[2])
local ids = {}
for number = 3, #ARGV do
  ids[#ids + 1] = ARGV[number]
end
load(ids)
local answers = {}
for number = 1, #ids do
  local r = rows[ids[number]]
  if r then
    local names = parts(r[NAMES])
    local side = QUERY
    if r[STATUS] == PENDING then
      side = SUBMIT
    elseif r[STATUS] == SUBMITTING and r[STEP] == STEP_RESUBMIT then
      side = RESUBMIT
    end
    local refused = first_refusal(needs(side, names[2], names[3], names[4]))
    local pause = ''
    if refused and refused.kind == 'pause' then
      pause = redis.call('HGET', K.rules, 'p' .. string.sub(refused.key, 7)) or ''
    end
    local next_at = refused and refused.next_at
    answers[number] = {
      packed(r), refused and refused.key or '', next_at and string.format('%d', next_at) or '', pause,
    }
  else
    answers[number] = false
  end
end
return {string.format('%d', now), workers, answers}
