---Gets a connection to a daemon that this plugin can talk to; starts or replaces the daemon for that.
local executable = require("kvd.executable")
local socket = require("kvd.socket")
local text = require("kvd.text")

local M = {}

---Of this plugin; it comes with kvd of the same version.
M.version = "0.1.0"
local protocol = 1

-- systemd may be just starting it.
local answer_ms = 15000

M.gone = text.problem(
  "unavailable",
  "the daemon went away before it had answered",
  "ask again, which starts it anew; kvd logs says what happened"
)
local unreadable =
  text.problem("failed", "Neovim can't read the daemon's answer", "kvd logs; look for file names that are not UTF-8")

---@class kvd.Connection
---@field client vim.lsp.rpc.PublicClient
---@field fault? kvd.Error why it was given up
---@field lost fun(connection: kvd.Connection) called once, when it has ended

---@class kvd.Call
---@field notified fun(method: string, params: table)
---@field done fun(problem: kvd.Error?, connection: kvd.Connection?)
---@field started boolean whether a daemon was started for it

local told_version ---@type string?

---Whether somebody listens: |vim.lsp.rpc.connect()| reports that in words of its own, and to nobody.
---@param path string
---@param done fun(reason: string?) the system's name of the error, such as "ENOENT"
local function probe(path, done)
  local pipe = assert(vim.uv.new_pipe(false))
  pipe:connect(path, function(reason)
    pipe:close()
    vim.schedule(function()
      done(reason)
    end)
  end)
end

---@param path string
---@param notified fun(method: string, params: table)
---@return kvd.Connection
local function open(path, notified)
  local connection = {} ---@type kvd.Connection
  local function give_up(fault)
    connection.fault = fault
    connection.client.terminate()
  end
  local errors = vim.lsp.rpc.client_errors
  connection.client = vim.lsp.rpc.connect(path)({
    notification = notified,
    on_error = function(code)
      if code == errors.READ_ERROR then
        give_up(M.gone)
      elseif code == errors.INVALID_SERVER_JSON or code == errors.INVALID_SERVER_MESSAGE then
        give_up(unreadable)
      end
    end,
    on_exit = vim.schedule_wrap(function()
      connection.lost(connection)
    end),
  })
  return connection
end

---@param version string
local function tell_version(version)
  if version ~= M.version and version ~= told_version then
    told_version = version
    local words = "kvd: the daemon is kvd %s, this plugin is of %s (hint: update the older one, then kvd stop)"
    vim.notify(words:format(text.clean_line(version), M.version), vim.log.levels.WARN)
  end
end

local attempt ---@type fun(call: kvd.Call)

---Has `kvd start` start a daemon, or replace one of another version that is idle.
---@param call kvd.Call
---@param needed boolean whether there is no other way
local function start(call, needed)
  call.started = true
  executable.run({ "start" }, function(problem)
    if problem and needed then
      call.done(problem)
    else
      attempt(call)
    end
  end)
end

---@param call kvd.Call
---@param connection kvd.Connection
---@param server table what `initialize` answered
local function introduced(call, connection, server)
  if not call.started and (server.stopping or server.version ~= M.version) then
    connection.client.terminate()
    return start(call, server.stopping)
  end
  if server.protocol ~= protocol then
    connection.client.terminate()
    local message = ("the daemon is kvd %s, which this plugin (of %s) can't talk to"):format(server.version, M.version)
    return call.done(text.problem("unavailable", message, "update the older one, then kvd stop"))
  end
  tell_version(server.version)
  call.done(nil, connection)
end

---@param call kvd.Call
---@param path string
local function introduce(call, path)
  local connection = open(path, call.notified)
  local timer = assert(vim.uv.new_timer())
  ---@param problem? kvd.Error
  ---@param server? table
  local function once(problem, server)
    if timer:is_closing() then
      return
    end
    timer:close()
    if server then
      introduced(call, connection, server)
    else
      connection.client.terminate()
      call.done(problem)
    end
  end
  connection.lost = function()
    once(connection.fault or M.gone)
  end
  local silent = text.problem("unavailable", "the daemon does not answer", "kvd stop --now")
  timer:start(
    answer_ms,
    0,
    vim.schedule_wrap(function()
      once(silent)
    end)
  )
  connection.client.request("initialize", { version = M.version, client = "neovim" }, function(answer, server)
    once(answer and text.problem("unavailable", answer.message, "kvd stop --now"), server)
  end)
end

attempt = function(call)
  local path, problem = socket.path()
  if not path then
    return call.done(problem)
  end
  probe(path, function(reason)
    if not reason then
      introduce(call, path)
    elseif not reason:find("ENOENT") and not reason:find("ECONNREFUSED") then
      call.done(text.problem("unavailable", "can't reach the daemon: " .. reason, "kvd stop --now"))
    elseif call.started then
      call.done(text.problem("unavailable", "the daemon was started, and does not listen", "kvd logs"))
    else
      start(call, true)
    end
  end)
end

---@param notified fun(method: string, params: table) gets all notifications
---@param done fun(problem: kvd.Error?, connection: kvd.Connection?)
function M.dial(notified, done)
  attempt({ notified = notified, done = done, started = false })
end

---Whether a daemon listens; starts none.
---@param done fun(problem: kvd.Error?, listens: boolean)
function M.look(done)
  local path, problem = socket.path()
  if not path then
    return done(problem, false)
  end
  probe(path, function(reason)
    done(nil, reason == nil)
  end)
end

return M
