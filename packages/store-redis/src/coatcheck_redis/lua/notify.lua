-- Telling those who wait for the change of one task.
-- keys: watch

local function notify(ids)
  if #ids == 0 or redis.call('ZCARD', K.watch) == 0 then
    return
  end
  local heard = {}
  for number = 1, #ids do
    if redis.call('ZSCORE', K.watch, ids[number]) then
      heard[#heard + 1] = ids[number]
    end
  end
  if #heard > 0 then
    redis.call('PUBLISH', K.meta .. ':news', 'c' .. table.concat(heard, '\31'))
  end
end
