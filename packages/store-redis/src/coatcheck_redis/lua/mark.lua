-- How often there was work so far.
-- use: base
return tonumber(redis.call('HGET', K.meta, 'work') or 0)
