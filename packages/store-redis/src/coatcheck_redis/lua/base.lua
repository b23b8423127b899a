-- Time, numbers in lexicographic order, and the rows of tasks: loaded once, changed in place, written back
-- together with everything that is indexed by their columns.
-- keys: meta tasks waiting look leases suspects live index

-- A script may begin with a clock of its caller (tests); otherwise the server's clock decides.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Codes are stored: never change one, only add.
local PENDING, SUBMITTING, SUBMITTED, RUNNING, FIRST_END = 1, 2, 3, 4, 5
local STEP_SUBMIT, STEP_RESUBMIT, STEP_LOOKUP, STEP_QUERY, STEP_CANCEL = 1, 2, 3, 4, 5
local JOB_NONE, JOB_LIVE, JOB_GHOST = 0, 1, 2
local CANCEL_REQUESTED = 1
local SUSPECT_CLAIMS, QUARANTINE_CLAIMS = 2, 3

-- A row as it is stored: a layout number, whole numbers, texts. -1 stands for none.
local ROW = '<B' .. string.rep('i8', 31) .. 'ssss'
local SEQ, STATUS, VERSION, GENERATION, FORMAT, PRIORITY = 2, 3, 4, 5, 6, 7
local DEADLINE, QUEUE_DEADLINE, STALL_LIMIT, CREATED, SCHEDULED, DEADLINE_AT = 8, 9, 10, 11, 12, 13
local QUEUE_AT, STALL_AT, DUE, UPDATED, FINISHED, STEP = 14, 15, 16, 17, 18, 19
local CANCEL, REDUE, CLAIMS, UNTIL, LENGTH, JOB = 20, 21, 22, 23, 24, 25
local GHOST_UNTIL, LANE, ORD1, ORD2, SUSPECT, LOOK, HOLD = 26, 27, 28, 29, 30, 31, 32
local NAMES, DEDUPE, TOKEN, KEY = 33, 34, 35, 36
-- Kept while a script runs, in place of the position that unpacking ends with: the id, the packed row, and the
-- columns as the indexes know them.
local OLD = 37
local ID, BLOB = 1, 2

-- Arguments of one call; Lua's stack bounds them.
local PORTION = 1000

-- Numbers in text order: both signs, exact up to 2^52 on either side.
local ZERO = 4503599627370496
local function enc(number)
  return struct.pack('>I8', number + ZERO)
end
local function dec(text, at)
  return struct.unpack('>I8', text, at) - ZERO
end
local function enc6(number)
  return struct.pack('>I6', number)
end

local function call_all(command, key, arguments)
  for first = 1, #arguments, PORTION do
    redis.call(command, key, unpack(arguments, first, math.min(first + PORTION - 1, #arguments)))
  end
end

local function read_all(key, fields)
  local found = {}
  for first = 1, #fields, PORTION do
    local part = redis.call('HMGET', key, unpack(fields, first, math.min(first + PORTION - 1, #fields)))
    for number = 1, #part do
      found[first + number - 1] = part[number]
    end
  end
  return found
end

-- Handler, provider, account and tenant of a row.
local parts_of = {}
local function parts(names)
  local found = parts_of[names]
  if not found then
    found = {}
    local from = 1
    for number = 1, 3 do
      local to = string.find(names, '\31', from, true)
      found[number] = string.sub(names, from, to - 1)
      from = to + 1
    end
    found[4] = string.sub(names, from)
    parts_of[names] = found
  end
  return found
end

-- Something may be due now that was not before.
local has_work = false

local rows = {}
local dirty = {}
local touched = {}
local counts = {}

local function adopt(id, blob)
  local r = {struct.unpack(ROW, blob)}
  r[OLD] = {
    id, blob, r[LANE], r[ORD1], r[ORD2], r[SUSPECT], r[LOOK], r[HOLD], r[STATUS], r[JOB], r[CLAIMS], r[FINISHED],
  }
  rows[id] = r
end

-- Load the rows of these ids that are not loaded yet; missing ones become false.
local function load(ids)
  local wanted = {}
  for number = 1, #ids do
    if rows[ids[number]] == nil then
      wanted[#wanted + 1] = ids[number]
      rows[ids[number]] = false
    end
  end
  local blobs = read_all(K.tasks, wanted)
  for number = 1, #wanted do
    if blobs[number] then
      adopt(wanted[number], blobs[number])
    end
  end
end

-- Say that a row was changed; what was packed before is out of date.
local function change(r)
  local old = r[OLD]
  if old[BLOB] then
    old[BLOB] = false
    dirty[#dirty + 1] = r
  end
end

local function packed(r)
  local old = r[OLD]
  if not old[BLOB] then
    old[BLOB] = struct.pack(ROW, unpack(r, 1, KEY))
  end
  return old[BLOB]
end

local function count(status, by)
  counts[status] = (counts[status] or 0) + by
end

local flush

-- Lua allows a script 200 names at its top: those that nobody else uses stay inside.
do
  local WAS_LANE, WAS_ORD1, WAS_ORD2, WAS_SUSPECT, WAS_LOOK, WAS_HOLD = 3, 4, 5, 6, 7, 8
  local WAS_STATUS, WAS_JOB, WAS_CLAIMS, WAS_FINISHED = 9, 10, 11, 12

  local function waiting_member(lane, ord1, ord2, r)
    return struct.pack('>I6I8I8I8', lane, ord1 + ZERO, ord2 + ZERO, r[SEQ]) .. r[OLD][ID]
  end

  local function index_end(status, finished, id)
    return 'e' .. string.char(status) .. enc(finished) .. id
  end

  local function index_dead(r)
    return 'd' .. enc(r[SEQ]) .. r[OLD][ID]
  end

  -- Members to be added to and removed from one sorted set.
  local function delta()
    return {added = {}, removed = {}, n = 0, gone = 0}
  end

  local function set(d, score, member)
    local n = d.n
    d.added[n + 1], d.added[n + 2] = score, member
    d.n = n + 2
  end

  local function unset(d, member)
    d.gone = d.gone + 1
    d.removed[d.gone] = member
  end

  local function apply(key, d)
    call_all('ZREM', key, d.removed)
    call_all('ZADD', key, d.added)
  end

  local function set_score(d, score, member)
    if score >= 0 then
      set(d, score, member)
    else
      unset(d, member)
    end
  end

  -- Write the changed rows, and bring what is indexed by their columns up to date.
  function flush()
    local put, size = {}, 0
    local waiting, look, leases, suspects, live, index = delta(), delta(), delta(), delta(), delta(), delta()
    for number = 1, #dirty do
      local r = dirty[number]
      local old = r[OLD]
      local id = old[ID]
      put[size + 1], put[size + 2] = id, packed(r)
      size = size + 2
      if r[LANE] ~= old[WAS_LANE] or r[ORD1] ~= old[WAS_ORD1] or r[ORD2] ~= old[WAS_ORD2] then
        if old[WAS_LANE] ~= 0 then
          unset(waiting, waiting_member(old[WAS_LANE], old[WAS_ORD1], old[WAS_ORD2], r))
          touched[old[WAS_LANE]] = true
        end
        if r[LANE] ~= 0 then
          set(waiting, 0, waiting_member(r[LANE], r[ORD1], r[ORD2], r))
          touched[r[LANE]] = true
        end
        old[WAS_LANE], old[WAS_ORD1], old[WAS_ORD2] = r[LANE], r[ORD1], r[ORD2]
      end
      if r[LOOK] ~= old[WAS_LOOK] then
        set_score(look, r[LOOK], id)
        old[WAS_LOOK] = r[LOOK]
      end
      if r[HOLD] ~= old[WAS_HOLD] then
        set_score(leases, r[HOLD], id)
        old[WAS_HOLD] = r[HOLD]
      end
      if r[SUSPECT] ~= old[WAS_SUSPECT] then
        set_score(suspects, r[SUSPECT], id)
        old[WAS_SUSPECT] = r[SUSPECT]
      end
      local status, job, finished = old[WAS_STATUS], old[WAS_JOB], old[WAS_FINISHED]
      if r[CLAIMS] ~= old[WAS_CLAIMS] or r[FINISHED] ~= finished then
        local was = old[WAS_CLAIMS] >= QUARANTINE_CLAIMS and finished < 0
        local is = r[CLAIMS] >= QUARANTINE_CLAIMS and r[FINISHED] < 0
        if is and not was then
          set(index, 0, index_dead(r))
        elseif was and not is then
          unset(index, index_dead(r))
        end
        old[WAS_CLAIMS] = r[CLAIMS]
      end
      if r[STATUS] ~= status or r[JOB] ~= job or r[FINISHED] ~= finished then
        if finished >= 0 and job == JOB_NONE then
          unset(index, index_end(status, finished, id))
        end
        if r[FINISHED] >= 0 and r[JOB] == JOB_NONE then
          set(index, 0, index_end(r[STATUS], r[FINISHED], id))
        end
        if r[STATUS] ~= status then
          count(status, -1)
          count(r[STATUS], 1)
        end
        if r[JOB] ~= job then
          local names = parts(r[NAMES])
          local account, tenant = 'a' .. names[3] .. '\0' .. id, 't' .. names[4] .. '\0' .. id
          if r[JOB] == JOB_NONE then
            unset(live, account)
          else
            set(live, 0, account)
          end
          if r[JOB] == JOB_LIVE then
            set(live, 0, tenant)
          else
            unset(live, tenant)
          end
        end
        old[WAS_STATUS], old[WAS_JOB], old[WAS_FINISHED] = r[STATUS], r[JOB], r[FINISHED]
      end
    end
    dirty = {}
    call_all('HSET', K.tasks, put)
    apply(K.waiting, waiting)
    apply(K.look, look)
    apply(K.leases, leases)
    apply(K.suspects, suspects)
    apply(K.live, live)
    apply(K.index, index)
  end
end

local function write_counts()
  for status, by in pairs(counts) do
    if by ~= 0 then
      redis.call('HINCRBY', K.meta, 'count' .. status, by)
    end
  end
  counts = {}
end

-- Wake whoever waits for work, if there is some. Channels belong to no slot, so they need no key.
local function announce()
  if has_work then
    local mark = redis.call('HINCRBY', K.meta, 'work', 1)
    redis.call('PUBLISH', K.meta .. ':news', 'w' .. mark)
  end
end

-- The time from which a pending task is not submitted any more.
local function submit_deadline(r)
  if r[QUEUE_AT] >= 0 and r[QUEUE_AT] < r[DEADLINE_AT] then
    return r[QUEUE_AT]
  end
  return r[DEADLINE_AT]
end

-- The script may enlarge a full server: what it does ends tasks, and makes room in the end. Redis asks only
-- before the first write whether there is room, and this one needs none.
local function go_on_when_full()
  redis.call('HDEL', K.meta, '')
end
