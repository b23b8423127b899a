-- Change something beside live records and make them due now: a lookup keeps its time, a leased row its lease.
-- use: base lanes

-- ARGV: now, "cancel", "due" or "redrive", "=tenant" or "", then ids.
go_on_when_full()
local what = ARGV[2]
local ids = {}
for number = 4, #ARGV do
  ids[#ids + 1] = ARGV[number]
end
load(ids)
local answers, is_done = {}, {}
for number = 1, #ids do
  local id = ids[number]
  local r = rows[id]
  local is_live = r and r[FINISHED] < 0 and (ARGV[3] == '' or ARGV[3] == '=' .. parts(r[NAMES])[4])
  answers[number] = is_live and 1 or 0
  if is_live and not is_done[id] then
    is_done[id] = true
    if what == 'cancel' and r[CANCEL] == 0 then
      r[CANCEL] = CANCEL_REQUESTED
    elseif what == 'redrive' then
      r[CLAIMS] = 0
    end
    local is_held = r[TOKEN] ~= ''
    if is_held then
      -- Its commit makes it due, also when it comes after the lease has run out.
      r[REDUE] = 1
    end
    if (not is_held or r[UNTIL] <= now) and not (is_held and r[STATUS] == SUBMITTING) then
      if r[STEP] ~= STEP_LOOKUP then
        r[DUE] = r[DUE] >= 0 and math.min(r[DUE], now) or now
      end
      place(r)
      has_work = true
    end
    change(r)
  end
end
finish()
announce()
return answers
