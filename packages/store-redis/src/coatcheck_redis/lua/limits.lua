-- What can stand in a task's way: pauses, gates, rates and live jobs, each with the room it has now. Rooms are
-- read once and spent in memory, so all limits of a task are taken together or not at all.
-- use: base lanes
-- keys: rules permits live

local PLENTY = 1e15
local resource_of, needs, spend, unspend, first_refusal, record_permits

do
  local known = {}
  local needs_of = {}

  -- Which kinds of rules were ever set: most namespaces need no look at the others.
  local flags
  local function is_set(name)
    if not flags then
      local found = redis.call('HMGET', K.meta, 'rates', 'lives', 'pauses', 'gates')
      flags = {rates = found[1], lives = found[2], pauses = found[3], gates = found[4]}
    end
    return flags[name]
  end

  local function rule(fields)
    local found = redis.call('HMGET', K.rules, unpack(fields))
    for number = 1, #found do
      if found[number] then
        return found[number]
      end
    end
  end

  -- ``"count:per"``, ``"-"`` where a limit was lifted, nil where none was ever set.
  local function rate_of(side, provider, account)
    local fields = {}
    for _, named_provider in ipairs(provider == '' and {''} or {provider, '*'}) do
      for _, named_account in ipairs(account == '' and {''} or {account, '*'}) do
        fields[#fields + 1] = 'r' .. key_of(side, named_provider, named_account)
      end
    end
    return rule(fields)
  end

  local function live_of(kind, name)
    return rule({'l' .. key_of(kind, name), 'l' .. key_of(kind, '*')})
  end

  local room_in = {}

  function room_in.pause(found, kind, name)
    if redis.call('HEXISTS', K.rules, 'p' .. key_of(kind, name)) == 1 then
      found.room = 0
    end
  end

  function room_in.gate(found, provider, account, side)
    local value = redis.call('HGET', K.rules, 'g' .. key_of(provider, account, side))
    if value then
      local ends_at = struct.unpack('<i8i8', value)
      if ends_at > now then
        found.room, found.next_at = 0, ends_at
      end
    end
  end

  -- Permits are kept with a running total, so that a window is counted by looking at its two ends.
  function room_in.rate(found, side, provider, account)
    local rate = rate_of(side, provider, account)
    if not rate or rate == '-' then
      return
    end
    local count, per = string.match(rate, '^(%d+):(%d+)$')
    count, per = tonumber(count), tonumber(per)
    local prefix = found.key .. '\0'
    local oldest = redis.call('ZRANGEBYLEX', K.permits, '(' .. prefix .. enc(now - per) .. '\255',
      '[' .. prefix .. '\255', 'LIMIT', 0, 1)[1]
    found.per, found.total, found.at = per, 0, now
    if oldest then
      local newest = redis.call('ZREVRANGEBYLEX', K.permits, '[' .. prefix .. '\255', '[' .. prefix, 'LIMIT', 0, 1)[1]
      local at = #prefix + 1
      found.total = dec(newest, at + 8)
      found.at = math.max(now, dec(newest, at))
      local used = found.total - dec(oldest, at + 8) + dec(oldest, at + 16)
      found.room, found.next_at = count - used, dec(oldest, at) + per
    else
      found.room, found.next_at = count, now + per
    end
  end

  function room_in.live(found, kind, name)
    local limit = live_of(kind, name)
    if not limit or limit == '-' then
      return
    end
    local prefix = (kind == 'account' and 'a' or 't') .. name .. '\0'
    found.room = tonumber(limit) - redis.call('ZLEXCOUNT', K.live, '[' .. prefix, '[' .. prefix .. '\255')
  end

  function resource_of(key)
    local found = known[key]
    if not found then
      local fields, from = {}, 1
      while true do
        local to = string.find(key, '\31', from, true)
        fields[#fields + 1] = string.sub(key, from, to and to - 1)
        if not to then
          break
        end
        from = to + 1
      end
      found = {key = key, kind = fields[1], room = PLENTY, spent = 0}
      room_in[fields[1]](found, unpack(fields, 2))
      known[key] = found
    end
    return found
  end

  local function ask(found, key)
    local resource = resource_of(key)
    if resource.room < PLENTY then
      found[#found + 1] = resource
    end
  end

  -- What a step needs room in, the first that refuses first. What is open for all is left out.
  function needs(side, provider, account, tenant)
    local asked = side .. '\31' .. provider .. '\31' .. account
    local shared = needs_of[asked]
    if not shared then
      shared = {}
      local word = side == QUERY and 'query' or 'submit'
      if side ~= QUERY and is_set('pauses') then
        ask(shared, key_of('pause', 'provider', provider))
        ask(shared, key_of('pause', 'account', account))
      end
      if is_set('gates') then
        ask(shared, key_of('gate', provider, account, word))
      end
      if is_set('rates') then
        ask(shared, key_of('rate', word, provider, ''))
        ask(shared, key_of('rate', word, '', account))
        ask(shared, key_of('rate', word, provider, account))
      end
      if side == SUBMIT and is_set('lives') then
        ask(shared, key_of('live', 'account', account))
      end
      needs_of[asked] = shared
    end
    if side ~= SUBMIT or not (is_set('pauses') or is_set('lives')) then
      return shared
    end
    asked = asked .. '\31' .. tenant
    local found = needs_of[asked]
    if not found then
      found = {}
      if is_set('pauses') then
        ask(found, key_of('pause', 'tenant', tenant))
      end
      for number = 1, #shared do
        found[#found + 1] = shared[number]
      end
      if is_set('lives') then
        ask(found, key_of('live', 'tenant', tenant))
      end
      needs_of[asked] = found
    end
    return found
  end

  function spend(resources)
    for number = 1, #resources do
      local resource = resources[number]
      resource.room, resource.spent = resource.room - 1, resource.spent + 1
    end
  end

  function unspend(resources)
    for number = 1, #resources do
      local resource = resources[number]
      resource.room, resource.spent = resource.room + 1, resource.spent - 1
    end
  end

  function first_refusal(resources)
    for number = 1, #resources do
      if resources[number].room < 1 then
        return resources[number]
      end
    end
  end

  -- Write down the permits that were spent, and forget those that no window can see.
  function record_permits()
    for key, resource in pairs(known) do
      if resource.kind == 'rate' and resource.spent > 0 and resource.per then
        local prefix = key .. '\0'
        redis.call('ZREMRANGEBYLEX', K.permits, '[' .. prefix, '[' .. prefix .. enc(now - resource.per) .. '\255')
        redis.call('ZADD', K.permits, 0, prefix .. enc(resource.at) .. enc(resource.total + resource.spent)
          .. enc(resource.spent))
      end
    end
  end
end
