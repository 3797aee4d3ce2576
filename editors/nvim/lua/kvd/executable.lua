---Runs the command `kvd`, without waiting for it.
local config = require("kvd.config")
local text = require("kvd.text")

local M = {}

-- `kvd start` itself gives up after 15 s, twice where it replaces a daemon.
local patience_ms = 60000

---@param output string what the command wrote on stderr
---@param what string
---@return kvd.Error
local function failure(output, what)
  local message = output:match("kvd: ([^\n]+)") or ("%s failed: %s"):format(what, vim.trim(output))
  return text.problem("unavailable", message, output:match("hint: ([^\n]+)") or "kvd logs")
end

---@param arguments string[]
---@param done fun(problem: kvd.Error?, stdout: string)
function M.run(arguments, done)
  local name = config.options.executable
  local program = vim.fn.exepath(vim.fs.normalize(name))
  if program == "" then
    return done(text.problem("unavailable", ("there is no program %s"):format(name), ":help kvd-install"), "")
  end
  local command = vim.list_extend({ program }, arguments)
  local options = { cwd = "/", text = true, timeout = patience_ms }
  local spawned, reason = pcall(
    vim.system,
    command,
    options,
    vim.schedule_wrap(function(result)
      local what = table.concat(vim.list_extend({ name }, arguments), " ")
      done(result.code ~= 0 and failure(result.stderr or "", what) or nil, result.stdout or "")
    end)
  )
  if not spawned then
    done(text.problem("unavailable", ("can't run %s: %s"):format(program, reason)), "")
  end
end

return M
