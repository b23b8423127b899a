-- The time of the store.
-- use: base
return string.format('%d', now)
