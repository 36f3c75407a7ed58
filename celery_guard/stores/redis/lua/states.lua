-- The words of core/states.py. A test holds the table below to TRANSITIONS there.
-- A row is one text: a constant costs nothing, a table would be built anew by every call.

local FINAL = {
  succeeded = true, failed = true, skipped = true, coalesced = true, replaced = true,
  lock_timeout = true, expired = true, revoked = true, dead = true,
}

local REOPENABLE = { failed = true, dead = true, lock_timeout = true }

local TRANSITIONS = {
  pending = ' running waiting skipped coalesced expired revoked failed ',
  waiting = ' pending running coalesced skipped lock_timeout expired revoked ',
  running = ' succeeded failed retrying interrupted lost replaced uncertain revoked ',
  retrying = ' running waiting skipped coalesced lock_timeout expired revoked ',
  interrupted = ' running waiting skipped coalesced replaced expired revoked ',
  lost = ' running waiting skipped coalesced replaced dead expired revoked ',
  uncertain = ' pending succeeded failed revoked ',
  succeeded = '',
  failed = ' pending ',
  skipped = '',
  coalesced = '',
  replaced = '',
  lock_timeout = ' pending ',
  expired = '',
  revoked = '',
  dead = ' pending ',
}

local function may_move(old, new)
  return string.find(TRANSITIONS[old], ' ' .. new .. ' ', 1, true) ~= nil
end
