-- Write decided moves: the checks that fence off late writers, the columns that follow, what is freed.
-- use: base lanes notify
-- keys: records params results rules

-- ARGV: now, then a text for each move: the lengths of id, key and record, numbers, then id, key, record and
-- result. One answer for each: a code, and for a conflict the version and status found.
local LENGTHS, NUMBERS, TEXTS = '<i8i8i8', '<' .. string.rep('i8', 22) .. 'd', 26 * 8
local DONE, LOST, GONE, HELD, CONFLICT, NO_MONEY = 0, 1, 2, 3, 4, 5
local SIDES = {'submit', 'query'}

go_on_when_full()

local ids = {}
for number = 2, #ARGV do
  ids[number - 1] = string.sub(ARGV[number], TEXTS + 1, TEXTS + struct.unpack(LENGTHS, ARGV[number]))
end
load(ids)

local answers, changed = {}, {}
local records, results, dropped = {}, {}, {}
local freed, gates = {}, {}

local function due_of(r, delay)
  if delay < 0 then
    return -1
  end
  local due = now + delay
  if r[REDUE] == 1 and r[STEP] ~= STEP_LOOKUP then
    due = now
  end
  if r[STATUS] == PENDING then
    return math.min(due, submit_deadline(r))
  end
  if r[STALL_AT] >= 0 then
    due = math.min(due, r[STALL_AT])
  end
  return math.min(due, r[DEADLINE_AT])
end

local function gate_of(names, side)
  local field = 'g' .. key_of(names[2], names[3], SIDES[side])
  local gate = gates[field]
  if not gate then
    gate = {ends_at = 0, streak = 0}
    local value = redis.call('HGET', K.rules, field)
    if value then
      gate.ends_at, gate.streak = struct.unpack('<i8i8', value)
      gate.is_known = true
    end
    gates[field] = gate
  end
  return gate, field
end

for number = 2, #ARGV do
  local move = ARGV[number]
  local id_size, key_size, record_size, at = struct.unpack(LENGTHS, move)
  local id = ids[number - 1]
  local key_end = TEXTS + id_size + key_size
  local key = string.sub(move, TEXTS + id_size + 1, key_end)
  local leased, has_money, want_version, want_status, status, generation, step, delay, job, ghost_for, format,
    has_result, drop_params, side, closes, gate_delay, gate_start, gate_cap, restart, progressed, cancel, claims,
    gate_factor =
    struct.unpack(NUMBERS, move, at)
  local r = rows[id]
  local code = DONE
  local is_repeat = false
  if not r then
    code = GONE
  elseif r[KEY] == key and key ~= '' then
    is_repeat = true
  elseif leased == 1 then
    if r[TOKEN] == '' or r[TOKEN] ~= key then
      code = LOST
    end
  elseif r[TOKEN] ~= '' then
    code = HELD
  elseif r[VERSION] ~= want_version or r[STATUS] ~= want_status then
    code = CONFLICT
  end
  if code == DONE and not is_repeat and has_money == 1 then
    code = NO_MONEY
  end
  if code ~= DONE then
    answers[#answers + 1] = {code, r and r[VERSION] or 0, r and r[STATUS] or 0}
  else
    answers[#answers + 1] = DONE
  end
  if code == DONE and not is_repeat then
    local was_end, old_job = r[FINISHED] >= 0, r[JOB]
    r[VERSION], r[STATUS], r[FORMAT], r[GENERATION], r[STEP] = r[VERSION] + 1, status, format, generation, step
    r[TOKEN], r[UNTIL], r[KEY], r[UPDATED] = '', -1, key, now
    if claims == 0 then
      r[CLAIMS] = 0
    elseif claims == 2 then
      r[CLAIMS] = math.max(0, r[CLAIMS] - 1)
    end
    r[JOB] = job
    if job == JOB_GHOST then
      if not was_end or restart == 1 or r[GHOST_UNTIL] < 0 then
        r[GHOST_UNTIL] = now + ghost_for
      end
      if r[GHOST_UNTIL] <= now then
        r[JOB] = JOB_NONE
      end
    else
      r[GHOST_UNTIL] = -1
    end
    if restart == 1 then
      r[SCHEDULED], r[DEADLINE_AT], r[STALL_AT] = now, now + r[DEADLINE], -1
      r[QUEUE_AT] = r[QUEUE_DEADLINE] >= 0 and now + r[QUEUE_DEADLINE] or -1
    end
    if cancel >= 0 then
      r[CANCEL] = cancel
    end
    if status < FIRST_END then
      r[FINISHED] = -1
    elseif not was_end or restart == 1 then
      r[FINISHED] = now
    end
    if progressed == 1 and r[STALL_LIMIT] >= 0 and (status == SUBMITTED or status == RUNNING) then
      r[STALL_AT] = now + r[STALL_LIMIT]
    end
    r[DUE] = due_of(r, delay)
    r[REDUE] = 0
    place(r)
    change(r)
    changed[#changed + 1] = id
    records[#records + 1] = id
    records[#records + 1] = string.sub(move, key_end + 1, key_end + record_size)
    if has_result == 1 then
      results[#results + 1] = id
      results[#results + 1] = string.sub(move, key_end + record_size + 1)
    end
    if drop_params == 1 then
      dropped[#dropped + 1] = id
    end
    local names = parts(r[NAMES])
    if old_job ~= r[JOB] then
      if old_job == JOB_LIVE then
        freed[key_of('live', 'tenant', names[4])] = true
      end
      if r[JOB] == JOB_NONE then
        freed[key_of('live', 'account', names[3])] = true
      end
    end
    if side > 0 then
      local gate, field = gate_of(names, side)
      if closes == 0 then
        if gate.is_known and gate.ends_at <= now then
          redis.call('HDEL', K.rules, field)
          gates[field] = {ends_at = 0, streak = 0}
        end
      else
        -- Answers to calls that were under way when the gate closed are the same closing, not another one in a
        -- row.
        if gate.ends_at <= now then
          gate.streak = gate.streak + 1
        end
        local length = gate_delay
        if length < 0 then
          local power = math.min(math.max(gate.streak, 1) - 1, 64)
          length = math.min(gate_cap, math.floor(gate_start * gate_factor ^ power))
        end
        gate.ends_at, gate.is_known = math.max(gate.ends_at, now + length), true
        redis.call('HSET', K.rules, field, struct.pack('<i8i8', gate.ends_at, gate.streak))
        redis.call('HSET', K.meta, 'gates', '1')
      end
    end
  end
end

call_all('HSET', K.records, records)
call_all('HSET', K.results, results)
call_all('HDEL', K.params, dropped)
finish(freed)
announce()
notify(changed)
return answers
