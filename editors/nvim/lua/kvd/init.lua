---kvd: asks about the repository at hand, through the kvd daemon.
local M = {}

---Changes options. Not needed for the defaults.
---@param options? kvd.Options
function M.setup(options)
  require("kvd.config").set(options)
end

---Asks, with |vim.ui.input()| where there is no question. With `first` and `last`, about these lines of the buffer.
---@param request? kvd.AskRequest
function M.ask(request)
  require("kvd.ask").run(request or {})
end

---Searches, with |vim.ui.input()| where there is no query.
---@param request? kvd.SearchRequest
function M.search(request)
  require("kvd.search").run(request or {})
end

---Brings the index of the repository up to date.
function M.index()
  require("kvd.index").run()
end

---Shows what `kvd status` prints. Starts nothing.
function M.status()
  require("kvd.status").run()
end

---Cancels what is being asked, searched and indexed from this Neovim.
function M.cancel()
  require("kvd.connection").cancel_all()
end

---Shows the last answer again.
function M.open()
  require("kvd.ask").open()
end

---For 'statusline': the model, and what is being done. "" as long as kvd was not used.
---@return string
function M.statusline()
  local activity = package.loaded["kvd.activity"]
  return activity and activity.text() or ""
end

return M
