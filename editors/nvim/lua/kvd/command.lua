---The command `:Kvd`.
local kvd = require("kvd")
local text = require("kvd.text")

local M = {}

---@type table<string, fun(rest: string, call: vim.api.keyset.create_user_command.command_args)>
local verbs = {
  ask = function(rest, call)
    local ranged = call.range > 0
    kvd.ask({ question = rest, first = ranged and call.line1 or nil, last = ranged and call.line2 or nil })
  end,
  cancel = kvd.cancel,
  index = kvd.index,
  open = kvd.open,
  status = kvd.status,
}

---@return string[]
local function names()
  local found = vim.tbl_keys(verbs)
  table.sort(found)
  return found
end

---@param call vim.api.keyset.create_user_command.command_args
function M.run(call)
  local verb, rest = call.args:match("^%s*(%S*)%s*(.*)$")
  if verbs[verb] then
    return verbs[verb](rest, call)
  end
  local message = verb == "" and ":Kvd needs to know what to do" or (":Kvd has no command %s"):format(verb)
  text.fail(text.problem("usage", message, "one of " .. table.concat(names(), ", ")))
end

---@param lead string
---@param line string
---@return string[]
function M.complete(lead, line)
  if line:match("Kvd%s+%S+%s") then
    return {}
  end
  return vim.tbl_filter(function(name)
    return vim.startswith(name, lead)
  end, names())
end

return M
