-- Rows and records by id; with payloads, params and results too.
-- use: base
-- keys: records params results

-- ARGV: now, "1" for payloads, then ids.
local ids = {}
for number = 3, #ARGV do
  ids[#ids + 1] = ARGV[number]
end
local answer = {read_all(K.tasks, ids), read_all(K.records, ids)}
if ARGV[2] == '1' then
  answer[3], answer[4] = read_all(K.params, ids), read_all(K.results, ids)
end
return answer
