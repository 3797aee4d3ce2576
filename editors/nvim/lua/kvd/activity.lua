---What the status line says: the model, and what is being done. Asks the daemon only while there is a connection anyway.
local connection = require("kvd.connection")
local text = require("kvd.text")

local M = {}

local poll_ms = 2000

---@type table<integer, string> what this Neovim waits for, by number
local running = {}
local last = 0
local model = "" -- as last known
local others = "" -- what the daemon does apart from that
local asking = false
local timer = assert(vim.uv.new_timer())

local function redraw()
  -- Also where the current window is a float, which has no status line.
  vim.cmd.redrawstatus({ bang = true })
end

---@param status table
local function learn(status)
  model = status.model and status.model.name or ""
  local indexing = #(status.indexing or {}) > 0
  others = indexing and "indexing" or (status.engine.state == "loading" and "loading the model" or "")
end

local function poll()
  if not connection.is_open() then
    timer:stop()
    others = ""
    redraw()
  elseif not asking then
    asking = true
    connection.request("status", vim.empty_dict(), {
      quiet = true,
      done = function(_, status)
        asking = false
        if status then
          learn(status)
        end
        redraw()
      end,
    })
  end
end

---@class kvd.Activity
---@field say fun(what: string)
---@field finish fun()

---@param what string
---@return kvd.Activity
function M.begin(what)
  last = last + 1
  local number = last
  local activity = {
    say = function(words)
      if running[number] then
        running[number] = words
        redraw()
      end
    end,
    finish = function()
      running[number] = nil
      poll()
      redraw()
    end,
  }
  running[number] = ""
  activity.say(what)
  timer:start(poll_ms, poll_ms, vim.schedule_wrap(poll))
  return activity
end

---@return string such as "kvd qwen2.5-coder-1.5b: answering"
function M.text()
  local named = model == "" and "kvd" or "kvd " .. text.clean_line(model)
  local numbers = vim.tbl_keys(running)
  table.sort(numbers)
  local doing = running[numbers[#numbers]] or others
  return doing == "" and named or ("%s: %s"):format(named, doing)
end

return M
