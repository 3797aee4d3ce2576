---`:checkhealth kvd`. Starts no daemon. Unlike all else here it waits, for some seconds at most.
local config = require("kvd.config")
local dial = require("kvd.dial")
local executable = require("kvd.executable")
local text = require("kvd.text")

local M = {}

local patience_ms = 5000

---@param begin fun(done: fun(...: any)) has to call `done` later
---@return any[]? values given to `done`, or nil when it took too long
local function await(begin)
  local values ---@type any[]?
  begin(function(...)
    values = { n = select("#", ...), ... }
  end)
  vim.wait(patience_ms, function()
    return values ~= nil
  end, 10)
  return values
end

local function check_neovim()
  if vim.fn.has("nvim-0.10") == 1 then
    vim.health.ok("Neovim " .. tostring(vim.version()))
  else
    vim.health.error("Neovim is older than 0.10", "Update Neovim")
  end
end

local function check_executable()
  local values = await(function(done)
    executable.run({ "--version" }, done)
  end)
  if not values then
    return vim.health.error(config.options.executable .. " --version takes too long", "Run it in a terminal")
  end
  local problem, stdout = values[1], values[2]
  if problem then
    return vim.health.error(problem.message, problem.hint)
  end
  local version = vim.trim(stdout):match("%S+$")
  if version == dial.version then
    vim.health.ok(("%s is kvd %s, as this plugin"):format(config.options.executable, version))
  else
    vim.health.warn(
      ("%s is kvd %s, this plugin is of %s"):format(config.options.executable, version, dial.version),
      "Update the older one, then: kvd stop"
    )
  end
end

---@param status table
local function report(status)
  vim.health.ok(("a daemon runs: kvd %s, pid %d"):format(status.daemon.version, status.daemon.pid))
  local model = status.model
  if not model then
    vim.health.error("no model is set up", "Run: kvd setup")
  elseif model.error ~= "" then
    vim.health.error(text.clean_line(model.error), "Run: kvd doctor")
  else
    vim.health.ok("model " .. text.clean_line(model.name))
  end
  if status.settings_error ~= "" then
    vim.health.error(text.clean_line(status.settings_error), "Run: kvd config")
  end
end

local function check_daemon()
  local looked = await(dial.look)
  if not looked then
    return vim.health.error("the daemon does not answer", "Run: kvd stop --now")
  elseif looked[1] then
    return vim.health.error(looked[1].message, looked[1].hint)
  elseif not looked[2] then
    return vim.health.info("No daemon runs; the first question starts one. `kvd doctor` checks the model.")
  end
  local values = await(function(done)
    require("kvd.connection").request("status", vim.empty_dict(), { done = done })
  end)
  if values and values[2] then
    report(values[2])
  else
    local problem = values and values[1] or text.problem("unavailable", "the daemon does not answer", "kvd stop --now")
    vim.health.error(problem.message, "Run: " .. problem.hint)
  end
end

function M.check()
  vim.health.start("kvd")
  check_neovim()
  check_executable()
  check_daemon()
end

return M
