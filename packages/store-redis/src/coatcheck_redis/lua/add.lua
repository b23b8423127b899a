-- Store new tasks. On a full server the first write is refused, and so is all of the call.
-- use: base lanes
-- keys: records params dedupe

-- ARGV: now, then for each task: id, numbers, names, dedupe key, digest, record, params.
local NUMBERS = '<i8i8i8i8i8i8i8i8'
local FIELDS = 7
-- Sooner than this a worker that sleeps until its next look has to hear of it.
local LONGEST_SLEEP = 40000000

local answers = {}
local created = 0
local records, all_params, index = {}, {}, {}
local dedupe_of = {}

local ids = {}
for first = 2, #ARGV, FIELDS do
  ids[#ids + 1] = ARGV[first]
end
load(ids)

local function found(code, id)
  answers[#answers + 1] = {code, id, packed(rows[id]), records[id] or redis.call('HGET', K.records, id)}
end

local fresh = {}
for first = 2, #ARGV, FIELDS do
  local id, numbers, names, key, digest = unpack(ARGV, first, first + 4)
  local format, priority, delay, run_at, deadline, queue, stall, has_key = struct.unpack(NUMBERS, numbers)
  local tenant = parts(names)[4]
  local field = tenant .. '\0' .. key
  local held
  if not rows[id] and has_key == 1 then
    held = dedupe_of[field] or redis.call('HGET', K.dedupe, field)
  end
  if rows[id] then
    found('created', id)
  elseif held then
    local length = struct.unpack('>I2', held)
    local holder = string.sub(held, 3 + length)
    load({holder})
    found(string.sub(held, 3, 2 + length) == digest and 'replayed' or 'conflict', holder)
  else
    local scheduled = now + delay
    if run_at >= 0 then
      scheduled = math.max(now, run_at)
    end
    local seq = redis.call('HINCRBY', K.meta, 'seq', 1)
    local r = {
      1, seq, PENDING, 0, 1, format, priority, deadline, queue, stall, now, scheduled, scheduled + deadline,
      queue >= 0 and scheduled + queue or -1, -1, scheduled, now, -1, STEP_SUBMIT, 0, 0, 0, -1, 30000000,
      JOB_NONE, -1, 0, 0, 0, -1, -1, -1, names, key, '', '',
      {id, true, 0, 0, 0, -1, -1, -1, PENDING, JOB_NONE, 0, -1},
    }
    rows[id] = r
    change(r)
    place(r)
    fresh[#fresh + 1] = id
    records[id] = ARGV[first + 5]
    all_params[#all_params + 1] = id
    all_params[#all_params + 1] = ARGV[first + 6]
    index[#index + 1] = 0
    index[#index + 1] = 'a' .. enc(seq) .. id
    if tenant ~= '' then
      index[#index + 1] = 0
      index[#index + 1] = 'o' .. tenant .. '\0' .. enc(seq) .. id
    end
    if has_key == 1 then
      dedupe_of[field] = struct.pack('>I2', #digest) .. digest .. id
      redis.call('HSET', K.dedupe, field, dedupe_of[field])
    end
    if r[LOOK] >= 0 and r[LOOK] <= now + LONGEST_SLEEP then
      has_work = true
    end
    created = created + 1
    answers[#answers + 1] = {'created', id, packed(r), false}
  end
end

if created > 0 then
  local put = {}
  for number = 1, #fresh do
    put[#put + 1] = fresh[number]
    put[#put + 1] = records[fresh[number]]
  end
  call_all('HSET', K.records, put)
  call_all('HSET', K.params, all_params)
  call_all('ZADD', K.index, index)
  count(PENDING, created)
  finish()
  announce()
end
return answers
