-- Lanes: who waits where, which lane is ready, which is blocked by what, and whose turn it is.
--
-- A lane is in one place: ready, or blocked by one resource; an empty one is deleted. A wake is pending for a
-- resource as long as it may have room while a lane is blocked on it. Lanes of first submits are kept by band
-- (handler, first order) and tenant, and each such group has one entry in the line of its handler, so that a
-- tenant's turn moves one entry however many lanes the tenant has. Lanes of other steps are of all tenants.
-- use: base
-- keys: lanes ready turns active blocked wakes

local SUBMIT, RESUBMIT, QUERY = 0, 1, 2

local lanes = {}
local lane_numbers = {}
-- Heads of lanes that are known before they are settled, false for an empty one.
local heads = {}
local bands = {}
local tenants = {}

local ageing
local function ageing_of()
  if not ageing then
    ageing = tonumber(redis.call('HGET', K.meta, 'ageing') or '0')
  end
  return ageing
end

-- A lane: its number, its name (side, handler, provider, account, tenant, format), where it stands.
local function lane_from_name(number, name)
  local lane = {n = number, id = enc6(number), name = name, state = 'r', resource = '', member = '', k1 = 0, k3 = 0}
  local from, fields = 1, {}
  for position = 1, 5 do
    local to = string.find(name, '\31', from, true)
    fields[position] = string.sub(name, from, to - 1)
    from = to + 1
  end
  lane.side = tonumber(fields[1])
  lane.handler, lane.provider, lane.account, lane.tenant = fields[2], fields[3], fields[4], fields[5]
  lane.tail = fields[3] .. '\31' .. fields[4] .. '\31' .. string.sub(name, from)
  return lane
end

local function lane_of(number)
  local lane = lanes[number]
  if lane == nil then
    local value = redis.call('HGET', K.lanes, 'i' .. enc6(number))
    if not value then
      lanes[number] = false
      return false
    end
    local name_end = string.find(value, '\0', 17, true)
    local resource_end = string.find(value, '\0', name_end + 2, true)
    lane = lane_from_name(number, string.sub(value, 17, name_end - 1))
    lane.k1, lane.k3 = dec(value, 1), dec(value, 9)
    lane.state = string.sub(value, name_end + 1, name_end + 1)
    lane.resource = string.sub(value, name_end + 2, resource_end - 1)
    lane.member = string.sub(value, resource_end + 1)
    lanes[number] = lane
  end
  return lane
end

local function lane_number(side, r)
  local names = r[NAMES]
  if side ~= SUBMIT then
    -- After the first submit nothing depends on the tenant any more: one lane serves all.
    names = string.sub(names, 1, -1 - #parts(names)[4])
  end
  local name = side .. '\31' .. names .. '\31' .. string.format('%d', r[FORMAT])
  local number = lane_numbers[name]
  if not number then
    number = tonumber(redis.call('HGET', K.lanes, 'n' .. name))
    if not number then
      number = redis.call('HINCRBY', K.meta, 'lane', 1)
      redis.call('HSET', K.lanes, 'n' .. name, number)
      lanes[number] = lane_from_name(number, name)
    end
    lane_numbers[name] = number
    -- Even if the row does not stay: an empty lane is deleted when touched lanes are settled.
    touched[number] = true
  end
  return number
end

local function leave(r)
  r[LANE], r[SUSPECT] = 0, -1
end

local function enter(r, side)
  if r[DUE] < 0 or r[DUE] <= now then
    has_work = true
  end
  if r[CLAIMS] >= SUSPECT_CLAIMS then
    r[SUSPECT] = r[DUE] >= 0 and r[DUE] or now
    return
  end
  if side ~= SUBMIT then
    r[ORD1], r[ORD2] = r[DUE] >= 0 and r[DUE] or now, 0
  elseif ageing_of() > 0 then
    local rank = r[SCHEDULED] - r[PRIORITY] * ageing
    r[ORD1], r[ORD2] = math.floor(rank / ageing), rank
  else
    r[ORD1], r[ORD2] = -r[PRIORITY], r[SCHEDULED]
  end
  r[LANE] = lane_number(side, r)
end

-- Decide where a row without a living lease waits, from its status, due time and deaths.
local function place(r)
  leave(r)
  r[HOLD] = -1
  local status = r[STATUS]
  if status >= FIRST_END then
    r[LOOK] = r[JOB] == JOB_GHOST and r[GHOST_UNTIL] or -1
  elseif status == PENDING then
    local limit = submit_deadline(r)
    r[LOOK] = limit
    if r[CANCEL] == CANCEL_REQUESTED then
      r[LOOK] = 0
      has_work = true
    elseif r[CLAIMS] >= QUARANTINE_CLAIMS then
      return
    elseif r[DUE] > now then
      r[LOOK] = math.min(r[DUE], limit)
    else
      enter(r, SUBMIT)
    end
  elseif r[CLAIMS] >= QUARANTINE_CLAIMS then
    r[LOOK] = r[DEADLINE_AT] + (status == SUBMITTING and 0 or r[LENGTH])
  elseif status == SUBMITTING then
    r[LOOK] = r[DEADLINE_AT]
    enter(r, r[STEP] == STEP_RESUBMIT and RESUBMIT or QUERY)
  else
    r[LOOK] = r[DEADLINE_AT] + r[LENGTH]
    enter(r, QUERY)
  end
end

-- Turns: a virtual time for each tenant.

local function last_turn()
  return tonumber(redis.call('HGET', K.meta, 'turn') or '0')
end

local function tenant_of(name)
  local tenant = tenants[name]
  if not tenant then
    local value = redis.call('HGET', K.turns, 't' .. name)
    tenant = {turn = 0, n = 0}
    if value then
      tenant.turn, tenant.n = struct.unpack('<i8i8', value)
    end
    tenants[name] = tenant
  end
  return tenant
end

local function write_tenant(name, tenant)
  redis.call('HSET', K.turns, 't' .. name, struct.pack('<i8i8', tenant.turn, tenant.n))
  if tenant.n > 0 then
    redis.call('ZADD', K.active, tenant.turn, name)
  else
    redis.call('ZREM', K.active, name)
  end
end

local function smallest_turn()
  local found = redis.call('ZRANGE', K.active, 0, 0, 'WITHSCORES')
  if found[2] then
    return tonumber(found[2])
  end
  -- Nobody waits: go on from the last turn taken, so that newcomers and old customers meet as equals.
  return last_turn()
end

-- Places.

local function band_of(handler, k1, tenant)
  return handler .. '\0' .. enc(k1) .. tenant
end

local function touch_band(handler, k1, tenant)
  local key = band_of(handler, k1, tenant)
  if not bands[key] then
    bands[key] = {handler = handler, k1 = k1, tenant = tenant}
  end
end

local function line_of(state)
  return state == 'b' and K.blocked or K.ready
end

local function remove_member(lane)
  if lane.member ~= '' then
    redis.call('ZREM', line_of(lane.was), lane.member)
    if lane.side == SUBMIT and lane.was == 'r' then
      touch_band(lane.handler, lane.was_k1, lane.tenant)
    end
  end
end

-- Bring a lane's entry up to date with its state and keys.
local function seat(lane, state, resource, k1, k3)
  lane.was, lane.was_k1 = lane.state, lane.k1
  local member
  if state == 'b' then
    if lane.state == 'b' and lane.resource == resource and lane.k1 == k1 and lane.k3 == k3 and lane.member ~= '' then
      return
    end
    local turn = lane.side == SUBMIT and tenant_of(lane.tenant).turn or 0
    member = resource .. '\0' .. lane.side .. enc(k1) .. enc(turn) .. enc(k3) .. lane.id
  elseif lane.side == SUBMIT then
    member = '0' .. lane.handler .. '\0' .. enc(k1) .. lane.tenant .. '\0' .. enc(k3) .. lane.id .. lane.tail
  else
    member = lane.side .. lane.handler .. '\0' .. enc(k1) .. lane.id .. lane.tail
  end
  if state == 'r' and lane.side == SUBMIT then
    touch_band(lane.handler, k1, lane.tenant)
  end
  if member == lane.member then
    return
  end
  remove_member(lane)
  redis.call('ZADD', line_of(state), 0, member)
  lane.state, lane.resource, lane.k1, lane.k3, lane.member = state, resource, k1, k3, member
  redis.call('HSET', K.lanes, 'i' .. lane.id,
    enc(k1) .. enc(k3) .. lane.name .. '\0' .. state .. resource .. '\0' .. member)
end

-- Give each touched band its entry in the line of its handler, with its tenant's turn.
local function settle_bands()
  local gone, moved = {}, {}
  for key, band in pairs(bands) do
    local prefix = '0' .. key .. '\0'
    local first = redis.call('ZRANGEBYLEX', K.ready, '[' .. prefix, '[' .. prefix .. '\255', 'LIMIT', 0, 2)
    local entry = redis.call('HGET', K.turns, 'b' .. key)
    local tenant = tenant_of(band.tenant)
    if not first[1] then
      if entry then
        redis.call('ZREM', K.ready, entry)
        redis.call('HDEL', K.turns, 'b' .. key)
        gone[#gone + 1] = band.tenant
      end
    else
      if not entry then
        if tenant.n == 0 then
          tenant.turn = math.max(tenant.turn, smallest_turn())
        end
        tenant.n = tenant.n + 1
        moved[band.tenant] = true
      end
      local at = #prefix + 1
      local wanted = 't' .. band.handler .. '\0' .. enc(band.k1) .. enc(tenant.turn)
        .. string.sub(first[1], at, at + 13) .. (first[2] and '+' or '-')
        .. band.tenant .. '\0' .. string.sub(first[1], at + 14)
      if wanted ~= entry then
        if entry then
          redis.call('ZREM', K.ready, entry)
        end
        redis.call('ZADD', K.ready, 0, wanted)
        redis.call('HSET', K.turns, 'b' .. key, wanted)
      end
    end
  end
  -- Last, so that a tenant which only changed its band does not count as one that comes anew.
  for number = 1, #gone do
    local tenant = tenant_of(gone[number])
    tenant.n = tenant.n - 1
    moved[gone[number]] = true
  end
  for name in pairs(moved) do
    write_tenant(name, tenant_of(name))
  end
  bands = {}
end

-- Bring the touched lanes up to date with their heads; delete the empty ones.
local function settle()
  for number in pairs(touched) do
    local lane = lane_of(number)
    if lane then
      local head = heads[number]
      if head == nil then
        head = redis.call('ZRANGEBYLEX', K.waiting, '[' .. lane.id, '[' .. lane.id .. '\255', 'LIMIT', 0, 1)[1]
      end
      if head then
        seat(lane, lane.state, lane.resource, dec(head, 7), dec(head, 15))
      else
        lane.was, lane.was_k1 = lane.state, lane.k1
        remove_member(lane)
        redis.call('HDEL', K.lanes, 'i' .. lane.id, 'n' .. lane.name)
        lanes[number] = false
        lane_numbers[lane.name] = nil
      end
    end
  end
  touched, heads = {}, {}
  settle_bands()
end

-- Blocking and waking.

local function wake_at(key, at)
  redis.call('ZADD', K.wakes, 'LT', at, key)
end

local function blocked_on(key, limit)
  return redis.call('ZRANGEBYLEX', K.blocked, '[' .. key .. '\0', '[' .. key .. '\0\255', 'LIMIT', 0, limit)
end

-- A resource may have room: have its lanes looked at by the next claim.
local function wake_now(keys)
  for key in pairs(keys) do
    if blocked_on(key, 1)[1] then
      wake_at(key, 0)
      has_work = true
    end
  end
end

local function key_of(...)
  return table.concat({...}, '\31')
end

-- All of a script that changes rows: write them, settle the lanes, count, wake.
local function finish(freed)
  flush()
  settle()
  wake_now(freed or {})
  write_counts()
end
