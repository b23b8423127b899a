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
-- Kept while a script runs: the id, and the columns as the indexes know them.
local ID, OLD_LANE, OLD_ORD1, OLD_ORD2, OLD_SUSPECT, OLD_LOOK, OLD_HOLD = 37, 38, 39, 40, 41, 42, 43
local OLD_STATUS, OLD_JOB, OLD_CLAIMS, OLD_FINISHED, IS_DIRTY = 44, 45, 46, 47, 48

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
  r[ID] = id
  r[OLD_LANE], r[OLD_ORD1], r[OLD_ORD2], r[OLD_SUSPECT] = r[LANE], r[ORD1], r[ORD2], r[SUSPECT]
  r[OLD_LOOK], r[OLD_HOLD], r[OLD_STATUS], r[OLD_JOB] = r[LOOK], r[HOLD], r[STATUS], r[JOB]
  r[OLD_CLAIMS], r[OLD_FINISHED], r[IS_DIRTY] = r[CLAIMS], r[FINISHED], false
  rows[id] = r
  return r
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

local function change(r)
  if not r[IS_DIRTY] then
    r[IS_DIRTY] = true
    dirty[#dirty + 1] = r
  end
end

local function pack(r)
  return struct.pack(ROW, unpack(r, 1, KEY))
end

local function waiting_member(lane, ord1, ord2, r)
  return struct.pack('>I6I8I8I8', lane, ord1 + ZERO, ord2 + ZERO, r[SEQ]) .. r[ID]
end

local function index_end(status, finished, id)
  return 'e' .. string.char(status) .. enc(finished) .. id
end

local function index_dead(r)
  return 'd' .. enc(r[SEQ]) .. r[ID]
end

local function count(status, by)
  counts[status] = (counts[status] or 0) + by
end

local function move(key, id, old, new, added, removed)
  if new >= 0 then
    added[#added + 1] = new
    added[#added + 1] = id
  else
    removed[#removed + 1] = id
  end
end

-- Write the changed rows, and bring what is indexed by their columns up to date.
local function flush()
  local put, enter, leave = {}, {}, {}
  local look, look_gone, hold, hold_gone, suspect, suspect_gone = {}, {}, {}, {}, {}, {}
  local live, live_gone, index, index_gone = {}, {}, {}, {}
  for number = 1, #dirty do
    local r = dirty[number]
    local id = r[ID]
    r[IS_DIRTY] = false
    put[#put + 1] = id
    put[#put + 1] = pack(r)
    if r[LANE] ~= r[OLD_LANE] or r[ORD1] ~= r[OLD_ORD1] or r[ORD2] ~= r[OLD_ORD2] then
      if r[OLD_LANE] ~= 0 then
        leave[#leave + 1] = waiting_member(r[OLD_LANE], r[OLD_ORD1], r[OLD_ORD2], r)
        touched[r[OLD_LANE]] = true
      end
      if r[LANE] ~= 0 then
        enter[#enter + 1] = 0
        enter[#enter + 1] = waiting_member(r[LANE], r[ORD1], r[ORD2], r)
        touched[r[LANE]] = true
      end
      r[OLD_LANE], r[OLD_ORD1], r[OLD_ORD2] = r[LANE], r[ORD1], r[ORD2]
    end
    if r[LOOK] ~= r[OLD_LOOK] then
      move(K.look, id, r[OLD_LOOK], r[LOOK], look, look_gone)
      r[OLD_LOOK] = r[LOOK]
    end
    if r[HOLD] ~= r[OLD_HOLD] then
      move(K.leases, id, r[OLD_HOLD], r[HOLD], hold, hold_gone)
      r[OLD_HOLD] = r[HOLD]
    end
    if r[SUSPECT] ~= r[OLD_SUSPECT] then
      move(K.suspects, id, r[OLD_SUSPECT], r[SUSPECT], suspect, suspect_gone)
      r[OLD_SUSPECT] = r[SUSPECT]
    end
    if r[CLAIMS] ~= r[OLD_CLAIMS] or r[FINISHED] ~= r[OLD_FINISHED] then
      local was = r[OLD_CLAIMS] >= QUARANTINE_CLAIMS and r[OLD_FINISHED] < 0
      local is = r[CLAIMS] >= QUARANTINE_CLAIMS and r[FINISHED] < 0
      if is and not was then
        index[#index + 1] = 0
        index[#index + 1] = index_dead(r)
      elseif was and not is then
        index_gone[#index_gone + 1] = index_dead(r)
      end
    end
    if r[STATUS] ~= r[OLD_STATUS] or r[JOB] ~= r[OLD_JOB] or r[FINISHED] ~= r[OLD_FINISHED] then
      if r[OLD_FINISHED] >= 0 and r[OLD_JOB] == JOB_NONE then
        index_gone[#index_gone + 1] = index_end(r[OLD_STATUS], r[OLD_FINISHED], id)
      end
      if r[FINISHED] >= 0 and r[JOB] == JOB_NONE then
        index[#index + 1] = 0
        index[#index + 1] = index_end(r[STATUS], r[FINISHED], id)
      end
      if r[STATUS] ~= r[OLD_STATUS] then
        count(r[OLD_STATUS], -1)
        count(r[STATUS], 1)
      end
      if r[JOB] ~= r[OLD_JOB] then
        local names = parts(r[NAMES])
        local account, tenant = 'a' .. names[3] .. '\0' .. id, 't' .. names[4] .. '\0' .. id
        if r[JOB] == JOB_NONE then
          live_gone[#live_gone + 1] = account
        else
          live[#live + 1] = 0
          live[#live + 1] = account
        end
        if r[JOB] == JOB_LIVE then
          live[#live + 1] = 0
          live[#live + 1] = tenant
        else
          live_gone[#live_gone + 1] = tenant
        end
      end
      r[OLD_STATUS], r[OLD_JOB] = r[STATUS], r[JOB]
    end
    r[OLD_CLAIMS], r[OLD_FINISHED] = r[CLAIMS], r[FINISHED]
  end
  dirty = {}
  call_all('HSET', K.tasks, put)
  call_all('ZREM', K.waiting, leave)
  call_all('ZADD', K.waiting, enter)
  call_all('ZREM', K.look, look_gone)
  call_all('ZADD', K.look, look)
  call_all('ZREM', K.leases, hold_gone)
  call_all('ZADD', K.leases, hold)
  call_all('ZREM', K.suspects, suspect_gone)
  call_all('ZADD', K.suspects, suspect)
  call_all('ZREM', K.live, live_gone)
  call_all('ZADD', K.live, live)
  call_all('ZREM', K.index, index_gone)
  call_all('ZADD', K.index, index)
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

-- A row lease lasts until another claim or a commit, so ``token`` is what says whose it is.
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
