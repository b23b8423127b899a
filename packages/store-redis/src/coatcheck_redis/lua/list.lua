-- A stretch of the list of tasks, newest first: what matches among the next so many rows.
-- use: base
-- keys: records

-- ARGV: now, family ("a" all, "o" of a tenant, "d" quarantined), tenant, the sequence number to go on below or
-- "", how many are wanted, how many rows to look at, handler, provider, account, dedupe key (each "=name" or ""),
-- then the codes of the statuses (none: all).
local prefix = ARGV[2]
if prefix == 'o' then
  prefix = prefix .. ARGV[3] .. '\0'
end
local upper = '[' .. prefix .. '\255'
if ARGV[4] ~= '' then
  upper = '(' .. prefix .. enc(tonumber(ARGV[4]))
end
local wanted, patience = tonumber(ARGV[5]), tonumber(ARGV[6])
local members = redis.call('ZREVRANGEBYLEX', K.index, upper, '[' .. prefix, 'LIMIT', 0, patience)
local ids = {}
for number = 1, #members do
  ids[number] = string.sub(members[number], #prefix + 9)
end
local statuses
for number = 11, #ARGV do
  statuses = statuses or {}
  statuses[tonumber(ARGV[number])] = true
end
local tenant = string.sub(ARGV[3], 2)
local has_tenant = prefix ~= '' and ARGV[2] ~= 'o' and ARGV[3] ~= ''
local blobs = read_all(K.tasks, ids)
local found, seen = {}, 0
for number = 1, #ids do
  if #found >= wanted then
    break
  end
  seen = number
  if blobs[number] then
    local r = {struct.unpack(ROW, blobs[number])}
    local names = parts(r[NAMES])
    if
      (not statuses or statuses[r[STATUS]])
      and (ARGV[7] == '' or ARGV[7] == '=' .. names[1])
      and (ARGV[8] == '' or ARGV[8] == '=' .. names[2])
      and (ARGV[9] == '' or ARGV[9] == '=' .. names[3])
      and (not has_tenant or tenant == names[4])
      and (ARGV[10] == '' or ARGV[10] == r[DEDUPE])
    then
      found[#found + 1] = {ids[number], blobs[number], redis.call('HGET', K.records, ids[number])}
    end
  end
end
local is_end = #members < patience and seen == #members
local last = ''
if seen > 0 then
  last = string.format('%d', dec(members[seen], #prefix + 1))
end
return {is_end and 1 or 0, last, found}
