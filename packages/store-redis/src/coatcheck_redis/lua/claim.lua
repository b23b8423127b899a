-- One claim: urgent rows for anybody, wakes, then half of the room for queries and half for submits.
--
-- Rows are taken from lanes through a heap that is fed from the lines of the worker's handlers, so that neither
-- the backlog nor the lanes that cannot move cost anything.
-- use: base lanes limits
-- keys: records params workers seen

-- ARGV: now, worker, nonce, token, sign, format, lease, total room, default room, "1" for idle, then four lists,
-- each with its length first: handlers, accounts to skip, (provider, room) pairs, only these ids ("-1": no such
-- list).
local worker, nonce, token, sign = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local format, lease = tonumber(ARGV[6]), tonumber(ARGV[7])
local total, default_room, is_idle = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] == '1'

local position = 11
local function read_list()
  local length = tonumber(ARGV[position])
  position = position + 1
  if length < 0 then
    return nil
  end
  local found = {}
  for number = 1, length do
    found[number] = ARGV[position]
    position = position + 1
  end
  return found
end
local handlers, skipped, rooms, only = read_list(), read_list(), read_list(), read_list()

-- How many urgent rows one claim looks at, and how many lanes it may block, before it says "come back at once".
local URGENT, PATIENCE = 256, 500
-- How many suspects one claim looks at: they are loaded each time, as long as a limit refuses them.
local MOST_SUSPECTS = 1024
-- How many resources one claim wakes lanes of, and how many lanes, at a time.
local WAKES, MOST_WOKEN = 64, 1000
-- When a suspect that nothing but a commit or a person can free is looked at again.
local SUSPECT_PAUSE = 1000000
local SIGN_OF_LIFE, WORKER_KEPT = 20000000, 3600000000

local KIND_SUBMIT, KIND_QUERY, KIND_CANCEL, KIND_RECOVER, KIND_EXPIRE = 1, 4, 5, 6, 7

local has_handler, skips, room_of = {}, {}, {}
for _, name in ipairs(handlers) do
  has_handler[name] = true
end
for _, name in ipairs(skipped) do
  skips[name] = true
end
for number = 1, #rooms, 2 do
  room_of[rooms[number]] = tonumber(rooms[number + 1])
end

local used = {}
local function provider_room(provider)
  return (room_of[provider] or default_room) - (used[provider] or 0)
end

local taken = {}
local is_cut_short = false
local patience = PATIENCE
local has_suspects, suspect_at = 0, nil

local function take(kind, r)
  taken[#taken + 1] = {kind, r}
end

-- What a row in a lane is claimed for, and on which side.
local function kind_of(r)
  if r[STATUS] == PENDING then
    return KIND_SUBMIT
  end
  if r[STATUS] ~= SUBMITTING and r[CANCEL] == CANCEL_REQUESTED then
    return KIND_CANCEL
  end
  return r[STEP]
end

local function side_of(r)
  if r[STATUS] == PENDING then
    return SUBMIT
  end
  return r[STEP] == STEP_RESUBMIT and RESUBMIT or QUERY
end

local function is_overdue(r)
  if r[STATUS] == PENDING then
    return submit_deadline(r) <= now
  end
  return r[STATUS] == SUBMITTING and r[DEADLINE_AT] <= now
end

-- Rows that need attention whatever their lane.

-- What anybody may take the row for; otherwise it says on the row where it waits.
local function urgent_kind(r)
  if r[STATUS] >= FIRST_END then
    -- The job whose end nobody saw has had its time.
    r[JOB], r[LOOK], r[HOLD] = JOB_NONE, -1, -1
    return nil, key_of('live', 'account', parts(r[NAMES])[3])
  end
  if r[TOKEN] ~= '' then
    if r[UNTIL] > now then
      r[LOOK] = r[UNTIL]
      return nil
    end
    if r[STATUS] == SUBMITTING then
      local at = r[UNTIL] + math.floor(r[LENGTH] / 2)
      if at <= now then
        return KIND_RECOVER
      end
      r[HOLD] = at
      if r[LOOK] <= now then
        r[LOOK] = at
      end
      return nil
    end
    -- Its worker is gone or slow: anybody may go on.
    r[DUE] = r[DUE] >= 0 and math.min(r[DUE], now) or now
  end
  if r[STATUS] == PENDING then
    if r[CANCEL] == CANCEL_REQUESTED then
      return KIND_CANCEL
    end
    if submit_deadline(r) <= now then
      return KIND_EXPIRE
    end
  elseif r[STATUS] == SUBMITTING then
    if r[DEADLINE_AT] <= now then
      return KIND_EXPIRE
    end
  elseif r[DEADLINE_AT] + r[LENGTH] <= now then
    return KIND_EXPIRE
  end
  place(r)
  return nil
end

local function attend(key, freed)
  local offset, looked = 0, 0
  while looked < URGENT and offset < 16 * URGENT do
    local ids = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', offset, URGENT)
    load(ids)
    for number = 1, #ids do
      local r = rows[ids[number]]
      -- Rows of newer formats stay untouched.
      if r and r[FORMAT] <= format and looked < URGENT then
        looked = looked + 1
        if not r.is_attended then
          r.is_attended = true
          local kind, key = urgent_kind(r)
          change(r)
          if key then
            freed[key] = true
          end
          if kind then
            leave(r)
            take(kind, r)
          end
        end
      end
    end
    if #ids < URGENT then
      break
    end
    offset = offset + URGENT
  end
  if looked >= URGENT then
    is_cut_short = true
  end
end

-- Suspects: tasks that two workers died with. An idle worker gets one, alone; a busy one is told of them.
local function is_mine(r)
  local names = parts(r[NAMES])
  return r[SUSPECT] >= 0 and r[FORMAT] <= format and has_handler[names[1]] and not skips[names[3]]
end

local function take_suspect()
  if total < 1 then
    return false
  end
  local offset, count = 0, URGENT
  -- Those that this worker cannot take, or a limit refuses, hide no other.
  while count == URGENT and offset < MOST_SUSPECTS do
    local ids = redis.call('ZRANGEBYSCORE', K.suspects, '-inf', now, 'LIMIT', offset, URGENT)
    load(ids)
    count, offset = #ids, offset + URGENT
    for number = 1, count do
      local r = rows[ids[number]]
      if r and is_mine(r) then
        local names = parts(r[NAMES])
        local wanted = needs(side_of(r), names[2], names[3], names[4])
        if first_refusal(wanted) then
          suspect_at = math.min(suspect_at or now + SUSPECT_PAUSE, now + SUSPECT_PAUSE)
          for position = 1, #wanted do
            if wanted[position].room < 1 and wanted[position].next_at then
              suspect_at = math.min(suspect_at, wanted[position].next_at)
            end
          end
        elseif not is_idle then
          has_suspects = 1
          return false
        elseif #taken == 0 and provider_room(names[2]) > 0 then
          spend(wanted)
          used[names[2]] = (used[names[2]] or 0) + 1
          take(kind_of(r), r)
          return true
        end
      end
    end
  end
  return false
end

-- Wakes: make lanes ready whose resource has room, at most so many a resource.
local function wake_due(portion)
  local woken = 0
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', K.wakes, '-inf', now, 'LIMIT', 0, WAKES)) do
    if woken >= MOST_WOKEN then
      -- The rest stays pending.
      break
    end
    local resource = resource_of(key)
    if resource.room > 0 then
      local places = math.min(resource.room, portion, MOST_WOKEN)
      local members = blocked_on(key, places + 1)
      for number = 1, math.min(places, #members) do
        local lane = lane_of(struct.unpack('>I6', members[number], #members[number] - 5))
        seat(lane, 'r', '', lane.k1, lane.k3)
        woken = woken + 1
      end
      -- If more wait for the room that those just woken may leave, the wake stays pending.
      if #members <= places then
        redis.call('ZREM', K.wakes, key)
      end
    elseif resource.next_at then
      redis.call('ZADD', K.wakes, resource.next_at, key)
    else
      -- A commit, a higher limit or the end of the pause will wake them.
      redis.call('ZREM', K.wakes, key)
    end
  end
  settle_bands()
  return woken
end

local chosen, turned = {}, {}
local pick, know

do
  -- The heap of lanes: first order, turn, second order, number.

  local function is_before(a, b)
    if a.k1 ~= b.k1 then
      return a.k1 < b.k1
    end
    if a.turn ~= b.turn then
      return a.turn < b.turn
    end
    if a.k3 ~= b.k3 then
      return a.k3 < b.k3
    end
    return a.n < b.n
  end

  local function push(heap, item)
    local at = #heap + 1
    while at > 1 do
      local above = math.floor(at / 2)
      if not is_before(item, heap[above]) then
        break
      end
      heap[at] = heap[above]
      at = above
    end
    heap[at] = item
  end

  local function pop(heap)
    local top, last = heap[1], table.remove(heap)
    local size = #heap
    if size > 0 then
      local at = 1
      while true do
        local below = at * 2
        if below > size then
          break
        end
        if below < size and is_before(heap[below + 1], heap[below]) then
          below = below + 1
        end
        if not is_before(heap[below], last) then
          break
        end
        heap[at] = heap[below]
        at = below
      end
      heap[at] = last
    end
    return top
  end

  -- Ready lanes.

  local seen_lanes = {}
  local classes = {}

  -- What the lanes with one provider, account and format have in common for this worker.
  local function class_of(tail)
    local class = classes[tail]
    if not class then
      local first = string.find(tail, '\31', 1, true)
      local second = string.find(tail, '\31', first + 1, true)
      class = {provider = string.sub(tail, 1, first - 1), account = string.sub(tail, first + 1, second - 1)}
      class.format = string.sub(tail, second + 1)
      class.is_readable = tonumber(class.format) <= format and not skips[class.account]
      classes[tail] = class
    end
    return class
  end

  local function is_usable(class)
    return class.is_readable and provider_room(class.provider) > 0
  end

  local function turn_of(side, tenant)
    return side == SUBMIT and tenant_of(tenant).turn or 0
  end

  -- The lane that an entry names, unless this worker can take nothing from it.
  local function lane_for(side, handler, id, tail, tenant, k1, k3)
    local class = class_of(tail)
    if not is_usable(class) then
      return nil
    end
    local lane = seen_lanes[id]
    if not lane then
      lane = {
        n = struct.unpack('>I6', id), id = id, side = side, tenant = tenant, class = class, k1 = k1, k3 = k3,
        handler = handler, tail = tail, seat_k1 = k1, seat_k3 = k3,
        members = {}, at = 1, fetched = 0, last = nil, is_drained = false,
        needs = needs(side, class.provider, class.account, tenant),
      }
      seen_lanes[id] = lane
    elseif lane.is_drained and lane.at > #lane.members then
      return nil
    end
    lane.turn = turn_of(side, tenant)
    return lane
  end

  -- A source yields entries of a line in order, a page at a time.
  local function source_of(prefix, read)
    return {
      prefix = prefix, upper = '[' .. prefix .. '\255', last = '[' .. prefix, page = {}, at = 1, size = 16, read = read,
    }
  end

  local function next_entry(source)
    local entry = source.page[source.at]
    if not entry then
      if source.is_over then
        return nil
      end
      source.page = redis.call('ZRANGEBYLEX', K.ready, source.last, source.upper, 'LIMIT', 0, source.size)
      source.is_over = #source.page < source.size
      source.at, source.size = 1, math.min(source.size * 4, PORTION)
      entry = source.page[1]
      if not entry then
        return nil
      end
      source.last = '(' .. source.page[#source.page]
    end
    source.at = source.at + 1
    return entry
  end

  -- Put the source's next lane into the heap. A lane that is later than its entry says is no bound for the entries
  -- behind it, so more are put in then.
  local function pull(heap, source)
    local entry = next_entry(source)
    while entry do
      if source.read(source, entry, heap) then
        return
      end
      entry = next_entry(source)
    end
  end

  local function offer(heap, source, lane, k1, turn, k3)
    if not lane then
      return false
    end
    push(heap, lane)
    if lane.k1 ~= k1 or lane.turn ~= turn or lane.k3 ~= k3 then
      -- It is in the heap with its own key; the source goes on by itself.
      return false
    end
    lane.source = source
    return true
  end

  -- The other lanes of a tenant in a band.
  local function band_source(handler, k1, tenant, k3, after)
    local prefix = '0' .. handler .. '\0' .. enc(k1) .. tenant .. '\0'
    local source = source_of(prefix, function(source, entry, heap)
      local at = #prefix + 1
      local k3, id, tail = dec(entry, at), string.sub(entry, at + 8, at + 13), string.sub(entry, at + 14)
      source.k3 = k3
      local lane = lane_for(SUBMIT, handler, id, tail, tenant, k1, k3)
      if not lane then
        return false
      end
      push(heap, lane)
      if lane.k1 ~= k1 or lane.k3 ~= k3 then
        return false
      end
      lane.rest = source
      return true
    end)
    source.last, source.k1, source.k3 = '(' .. prefix .. after, k1, k3
    return source
  end

  local function submit_source(handler)
    local prefix = 't' .. handler .. '\0'
    return source_of(prefix, function(source, entry, heap)
      local at = #prefix + 1
      local flag = string.sub(entry, at + 30, at + 30)
      local tenant_end = string.find(entry, '\0', at + 31, true)
      local tail = string.sub(entry, tenant_end + 1)
      if flag == '-' and not is_usable(class_of(tail)) then
        -- First of all, because a vendor that hangs has many lanes waiting here.
        return false
      end
      local k1, turn, k3 = dec(entry, at), dec(entry, at + 8), dec(entry, at + 16)
      local id, tenant = string.sub(entry, at + 24, at + 29), string.sub(entry, at + 31, tenant_end - 1)
      if tenant_of(tenant).turn ~= turn then
        touch_band(handler, k1, tenant)
      end
      local lane = lane_for(SUBMIT, handler, id, tail, tenant, k1, k3)
      if flag == '+' then
        local others = band_source(handler, k1, tenant, k3, enc(k3) .. id .. tail)
        if lane then
          lane.rest = others
        else
          pull(heap, others)
        end
      end
      return offer(heap, source, lane, k1, turn, k3)
    end)
  end

  local function due_source(side, handler)
    local prefix = side .. handler .. '\0'
    return source_of(prefix, function(source, entry, heap)
      local at = #prefix + 1
      local k1, id, tail = dec(entry, at), string.sub(entry, at + 8, at + 13), string.sub(entry, at + 14)
      if k1 > now then
        source.is_over, source.page, source.at = true, {}, 1
        return true
      end
      return offer(heap, source, lane_for(side, handler, id, tail, '', k1, 0), k1, 0, 0)
    end)
  end

  -- Make sure that the lane's next member is loaded, and give the lane its key.
  local function peek(lane, places, rivals)
    local member = lane.members[lane.at]
    if not member and not lane.is_drained and places > 0 then
      local wanted = math.min(math.max(2, lane.fetched, math.floor(places / rivals) + 1), places)
      -- A submit's order is no time: every row of its lane is due.
      local upper = lane.side == SUBMIT and '[' .. lane.id .. '\255' or '[' .. lane.id .. enc(now) .. '\255'
      lane.members = redis.call('ZRANGEBYLEX', K.waiting, lane.last or '[' .. lane.id, upper, 'LIMIT', 0, wanted)
      lane.at = 1
      lane.fetched = lane.fetched + #lane.members
      lane.is_drained = #lane.members < wanted
      member = lane.members[1]
      if member then
        lane.last = '(' .. lane.members[#lane.members]
      end
    end
    if not member then
      return false
    end
    lane.k1, lane.k3 = dec(member, 7), lane.side == SUBMIT and dec(member, 15) or 0
    return true
  end

  -- Take rows from the best lane as long as it stays the best and nothing refuses.
  local function take_from(lane, places, heap)
    local rival = heap[1]
    local provider = lane.class.provider
    local room = provider_room(provider)
    for number = 1, #lane.needs do
      room = math.min(room, lane.needs[number].room)
    end
    local count = 0
    while count < places and peek(lane, places - count, #heap + 1) do
      if count > 0 and (room < 1 or (rival and is_before(rival, lane))) then
        break
      end
      chosen[#chosen + 1] = {string.sub(lane.members[lane.at], 31), lane}
      lane.at = lane.at + 1
      count, room = count + 1, room - 1
      spend(lane.needs)
      used[provider] = (used[provider] or 0) + 1
      if lane.side == SUBMIT then
        local tenant = tenant_of(lane.tenant)
        tenant.turn = tenant.turn + 1
        turned[lane.tenant] = tenant
        lane.turn = tenant.turn
      end
    end
    return count
  end

  -- What is known of a lane need not be read again: where it stands and, after rows were taken, its head.
  function know(lane)
    if lane.side ~= SUBMIT then
      return
    end
    if lanes[lane.n] == nil then
      local class = lane.class
      lanes[lane.n] = {
        n = lane.n, id = lane.id, side = SUBMIT, handler = lane.handler, tenant = lane.tenant, tail = lane.tail,
        provider = class.provider, account = class.account, state = 'r', resource = '',
        k1 = lane.seat_k1, k3 = lane.seat_k3,
        name = '0\31' .. lane.handler .. '\31' .. class.provider .. '\31' .. class.account .. '\31' .. lane.tenant
          .. '\31' .. class.format,
        member = '0' .. lane.handler .. '\0' .. enc(lane.seat_k1) .. lane.tenant .. '\0' .. enc(lane.seat_k3)
          .. lane.id .. lane.tail,
      }
    end
  end

  -- What stands for the other lanes of a tenant in a band: they are no better than it.
  local function push_rest(heap, lane, source, turn)
    if source then
      push(heap, {
        is_rest = true, source = source, tenant = lane.tenant, k1 = source.k1, turn = turn, k3 = source.k3, n = lane.n,
      })
    end
  end

  function pick(side, places)
    if places < 1 then
      return 0
    end
    local heap = {}
    for _, handler in ipairs(handlers) do
      pull(heap, side == SUBMIT and submit_source(handler) or due_source(side, handler))
    end
    local count = 0
    while heap[1] and count < places and patience > 0 do
      local lane = pop(heap)
      local source, rest = lane.source, lane.rest
      lane.source = nil
      if source and not lane.is_rest then
        -- Behind this lane its line may have another as good as it.
        pull(heap, source)
      end
      local turn = turn_of(side, lane.tenant)
      if lane.turn < turn then
        lane.turn, lane.source = turn, lane.is_rest and source or nil
        push(heap, lane)
      elseif lane.is_rest then
        pull(heap, source)
      elseif provider_room(lane.class.provider) < 1 then
        lane.rest = nil
        push_rest(heap, lane, rest, turn)
      else
        lane.rest = nil
        local refused = first_refusal(lane.needs)
        if refused then
          patience = patience - 1
          know(lane)
          local place = lane_of(lane.n)
          seat(place, 'b', refused.key, place.k1, place.k3)
          if refused.next_at then
            wake_at(refused.key, refused.next_at)
          end
          push_rest(heap, lane, rest, turn)
        else
          push_rest(heap, lane, rest, turn + 1)
          count = count + take_from(lane, places - count, heap)
          if peek(lane, places - count, #heap + 1) then
            push(heap, lane)
          end
        end
      end
    end
    for _, lane in pairs(heap) do
      lane.source, lane.rest = nil, nil
    end
    return count
  end
end

-- How many places the query side gets first; an odd one goes to the side whose head waited longer.
local function query_share(places)
  local half = math.floor(places / 2)
  if places % 2 == 0 then
    return half
  end
  local query, submit
  for _, handler in ipairs(handlers) do
    local prefix = QUERY .. handler .. '\0'
    local head = redis.call('ZRANGEBYLEX', K.ready, '[' .. prefix, '[' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
    if head then
      query = math.min(query or PLENTY * 4, dec(head, #prefix + 1))
    end
    prefix = 't' .. handler .. '\0'
    head = redis.call('ZRANGEBYLEX', K.ready, '[' .. prefix, '[' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
    if head then
      submit = math.min(submit or PLENTY * 4, dec(head, #prefix + 17))
    end
  end
  if not query or query > now then
    return half
  end
  return (not submit or query <= submit) and half + 1 or half
end

local function run()
  local freed = {}
  attend(K.leases, freed)
  attend(K.look, freed)
  if #dirty > 0 then
    flush()
    settle()
    wake_now(freed)
  end
  if take_suspect() then
    is_cut_short = true
    return
  end
  local portion = math.max(total, 16)
  wake_due(portion)
  local count = pick(QUERY, query_share(total))
  local function submits()
    local found = pick(RESUBMIT, total - count)
    return found + pick(SUBMIT, total - count - found)
  end
  count = count + submits()
  count = count + pick(QUERY, total - count)
  while count < total and patience > 0 do
    settle_bands()
    if wake_due(portion) == 0 then
      break
    end
    count = count + pick(QUERY, total - count)
    count = count + submits()
  end
  is_cut_short = is_cut_short or (total > 0 and count >= total)
end

-- Take the rows that were picked, and return the resources that had one spent for a task which is too late.
local function take_chosen()
  local ids, freed = {}, {}
  for number = 1, #chosen do
    ids[number] = chosen[number][1]
  end
  load(ids)
  for number = 1, #chosen do
    local r, lane = rows[ids[number]], chosen[number][2]
    know(lane)
    local member = lane.members[lane.at]
    if member then
      heads[lane.n] = member
    elseif lane.side == SUBMIT and lane.is_drained then
      heads[lane.n] = false
    end
    if r and is_overdue(r) then
      unspend(lane.needs)
      for position = 1, #lane.needs do
        freed[lane.needs[position].key] = true
      end
      if lane.side == SUBMIT then
        local tenant = tenant_of(lane.tenant)
        tenant.turn = tenant.turn - 1
      end
      take(KIND_EXPIRE, r)
    elseif r then
      take(kind_of(r), r)
    end
  end
  return freed
end

-- These tasks, if they are queryable, free and allowed.
local function run_only()
  load(only)
  local asked = {}
  for _, id in ipairs(only) do
    local r = rows[id]
    if r and not asked[id] and r[FORMAT] <= format and (r[STATUS] == SUBMITTED or r[STATUS] == RUNNING) then
      asked[id] = true
      local names = parts(r[NAMES])
      local wanted = needs(QUERY, names[2], names[3], names[4])
      if
        (r[TOKEN] == '' or r[UNTIL] <= now)
        and r[CLAIMS] < QUARANTINE_CLAIMS
        and has_handler[names[1]]
        and not skips[names[3]]
        and #taken < total
        and provider_room(names[2]) > 0
        and not first_refusal(wanted)
      then
        spend(wanted)
        used[names[2]] = (used[names[2]] or 0) + 1
        take(kind_of(r), r)
      end
    end
  end
end

local function write_leases(freed)
  local ends_at = now + lease
  local half = math.floor(lease / 2)
  for number = 1, #taken do
    local kind, r = taken[number][1], taken[number][2]
    leave(r)
    r[TOKEN] = token .. string.format('%x', number - 1)
    r[UNTIL], r[LENGTH], r[REDUE] = ends_at, lease, 0
    if kind == KIND_SUBMIT then
      r[STATUS], r[JOB] = SUBMITTING, JOB_LIVE
      r[CLAIMS] = r[CLAIMS] + 1
    elseif r[STATUS] ~= PENDING and kind ~= KIND_RECOVER and kind ~= KIND_EXPIRE then
      r[CLAIMS] = r[CLAIMS] + 1
    end
    -- A worker that is only slow gets half a lease more before its submit counts as lost.
    r[HOLD] = r[STATUS] == SUBMITTING and ends_at + half or ends_at
    if r[LOOK] >= 0 and r[LOOK] <= now then
      r[LOOK] = r[HOLD]
    end
    change(r)
  end
  local highest
  for name, tenant in pairs(turned) do
    write_tenant(name, tenant)
    highest = math.max(highest or tenant.turn, tenant.turn)
  end
  if highest then
    redis.call('HSET', K.meta, 'turn', string.format('%d', highest - 1))
  end
  record_permits()
  finish(freed)
end

-- When something may be due that was not taken now.
local function next_at()
  if is_cut_short or patience <= 0 then
    return now
  end
  local best
  local function at(time)
    if time then
      time = tonumber(time)
      best = math.min(best or time, time)
    end
  end
  for _, key in ipairs({K.look, K.leases, K.suspects}) do
    at(redis.call('ZRANGEBYSCORE', key, '(' .. string.format('%d', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  end
  at(redis.call('ZRANGE', K.wakes, 0, 0, 'WITHSCORES')[2])
  at(suspect_at)
  for side = RESUBMIT, QUERY do
    for _, handler in ipairs(handlers) do
      local prefix = side .. handler .. '\0'
      local head = redis.call('ZRANGEBYLEX', K.ready, '(' .. prefix .. enc(now) .. '\255', '[' .. prefix .. '\255',
        'LIMIT', 0, 1)[1]
      if head then
        at(dec(head, #prefix + 1))
      end
    end
  end
  return best and math.max(best, now) or -1
end

-- Remember what this worker can do and what it was just given. An idle claim writes only now and then.
local function sign_of_life(claimed)
  local last = redis.call('HGET', K.workers, 's' .. worker)
  local is_same, at = false, 0
  if last then
    at = struct.unpack('<i8', last)
    is_same = string.sub(last, 9) == sign
  end
  local is_due = not is_same or now - at >= SIGN_OF_LIFE or now < at
  if is_due then
    redis.call('HSET', K.workers, 's' .. worker, struct.pack('<i8', now) .. sign)
    redis.call('ZADD', K.seen, now, worker)
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', K.seen, '-inf', now - WORKER_KEPT, 'LIMIT', 0, 100)) do
      redis.call('HDEL', K.workers, 's' .. gone, 'c' .. gone)
      redis.call('ZREM', K.seen, gone)
    end
  end
  if is_due or claimed then
    redis.call('HSET', K.workers, 'c' .. worker, nonce .. '\0' .. token .. '\0' .. (claimed or ''))
  end
end

local function answer_of(items)
  local ids, with_params = {}, {}
  for number = 1, #items do
    ids[number] = items[number][2][OLD][ID]
    if items[number][1] <= 3 then
      with_params[#with_params + 1] = ids[number]
    end
  end
  local records, all_params = read_all(K.records, ids), read_all(K.params, with_params)
  local answer, params_at = {}, 0
  for number = 1, #items do
    local kind, r = items[number][1], items[number][2]
    local params
    if kind <= 3 then
      params_at = params_at + 1
      params = all_params[params_at]
    end
    local id, row, record = ids[number], packed(r), records[number] or ''
    -- One text for each lease: a client reads few long texts sooner than many short ones.
    answer[number] = struct.pack('<Bi4i4i4i4', kind, #id, #row, #record, params and #params or -1)
      .. id .. row .. record .. (params or '')
  end
  return answer
end

-- The leases of an earlier claim with this nonce that are still held, if there was one.
local function repeated()
  local last = redis.call('HGET', K.workers, 'c' .. worker)
  if not last or string.sub(last, 1, #nonce + 1) ~= nonce .. '\0' then
    return nil
  end
  local token_end = string.find(last, '\0', #nonce + 2, true)
  local before = string.sub(last, #nonce + 2, token_end - 1)
  local items = {}
  for kind, id in string.gmatch(string.sub(last, token_end + 1), '(%d)([^\31]*)\31') do
    load({id})
    local r = rows[id]
    if r and string.sub(r[TOKEN], 1, #before) == before then
      items[#items + 1] = {tonumber(kind), r}
    end
  end
  return items
end

go_on_when_full()
local items = repeated()
if not items then
  local freed
  if only then
    run_only()
  else
    run()
    freed = take_chosen()
  end
  write_leases(freed)
  local claimed = {}
  for number = 1, #taken do
    claimed[number] = taken[number][1] .. taken[number][2][OLD][ID] .. '\31'
  end
  sign_of_life(#claimed > 0 and table.concat(claimed) or nil)
  items = taken
end
local mark = redis.call('HGET', K.meta, 'work')
return {string.format('%d', now), string.format('%d', next_at()), tonumber(mark or 0), has_suspects, answer_of(items)}
