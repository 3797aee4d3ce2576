---Requests to the daemon, on one connection that is made when needed and given up when it was not needed for a while.
local dial = require("kvd.dial")
local text = require("kvd.text")

local M = {}

-- A daemon with a client never ends by itself.
local idle_ms = 60000

---@class kvd.Handlers
---@field done fun(problem: kvd.Error?, result: table?) called once
---@field progress? fun(value: table)
---@field quiet? boolean whether it neither keeps the connection nor is cancelled with the others

---@class kvd.Request
---@field id? integer once it was sent
---@field token integer
---@field handlers kvd.Handlers
---@field settled boolean

---@type kvd.Connection?
local current
---@type table<integer, kvd.Request> by token
local pending = {}
---@type fun(problem: kvd.Error?)[]
local waiters = {}
local last_token = 0
local idle = assert(vim.uv.new_timer())

local function close_if_idle()
  local busy = vim.iter(pairs(pending)):any(function(_, request)
    return not request.handlers.quiet
  end)
  if current and not busy then
    current.client.terminate()
  end
end

---@param request kvd.Request
---@param problem? kvd.Error
---@param result? table
local function settle(request, problem, result)
  if request.settled then
    return
  end
  request.settled = true
  pending[request.token] = nil
  if not request.handlers.quiet then
    idle:start(idle_ms, 0, vim.schedule_wrap(close_if_idle))
  end
  request.handlers.done(problem, result)
end

---@param answer lsp.ResponseError
---@return kvd.Error
local function problem_of(answer)
  local data = type(answer.data) == "table" and answer.data or {}
  return text.problem(data.code or "failed", data.message or answer.message or "it failed", data.hint)
end

---@param method string
---@param params table
local function notified(method, params)
  local request = method == "$/progress" and pending[params.token]
  if request and request.handlers.progress then
    request.handlers.progress(params.value)
  end
end

---@param connection kvd.Connection
local function lost(connection)
  if connection ~= current then
    return
  end
  current = nil
  for _, request in ipairs(vim.tbl_values(pending)) do
    settle(request, connection.fault or dial.gone)
  end
end

---@return boolean
function M.is_open()
  return current ~= nil and not current.client.is_closing()
end

---@param done fun(problem: kvd.Error?)
local function connect(done)
  if M.is_open() then
    return done()
  end
  table.insert(waiters, done)
  if #waiters > 1 then
    return
  end
  dial.dial(notified, function(problem, connection)
    if connection then
      connection.lost = lost
      current = connection
    end
    local waiting = waiters
    waiters = {}
    for _, waiter in ipairs(waiting) do
      waiter(problem)
    end
  end)
end

---@param request kvd.Request
---@param method string
---@param params table
local function send(request, method, params)
  local client = assert(current).client
  local answered = false
  local sent, id = client.request(method, params, function(answer, result)
    answered = true
    settle(request, answer and problem_of(answer), result)
  end, function()
    -- Neovim passes on no answer that says "cancelled", which also a daemon that stops gives.
    vim.schedule(function()
      if not answered then
        settle(request, text.problem("stopped", "the daemon cancelled it", "ask again"))
      end
    end)
  end)
  request.id = id
  if not sent then
    settle(request, dial.gone)
  end
end

---Sends a request, on a new connection where there is none, to a new daemon where none runs.
---@param method string
---@param params table
---@param handlers kvd.Handlers
---@return kvd.Request
function M.request(method, params, handlers)
  last_token = last_token + 1
  local request = { token = last_token, handlers = handlers, settled = false } ---@type kvd.Request
  pending[request.token] = request
  if handlers.progress then
    params = vim.tbl_extend("force", params, { progressToken = request.token })
  end
  connect(function(problem)
    if problem then
      settle(request, problem)
    elseif not request.settled then
      send(request, method, params)
    end
  end)
  return request
end

---@param request kvd.Request
function M.cancel(request)
  if request.settled then
    return
  end
  if request.id and current then
    current.client.notify("$/cancelRequest", { id = request.id })
  end
  settle(request, text.problem("cancelled", "cancelled"))
end

function M.cancel_all()
  for _, request in ipairs(vim.tbl_values(pending)) do
    if not request.handlers.quiet then
      M.cancel(request)
    end
  end
end

return M
