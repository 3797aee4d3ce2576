---A search, and the picker of what was found.
local activity = require("kvd.activity")
local config = require("kvd.config")
local connection = require("kvd.connection")
local repository = require("kvd.repository")
local sources = require("kvd.sources")
local text = require("kvd.text")

local M = {}

---@class kvd.SearchRequest
---@field query? string
---@field quickfix? boolean whether what is found goes into the quickfix list, without a picker
---@field paths? string[] patterns as in .gitignore: only this part of the repository
---@field languages? string[] only code of these languages

---@param source kvd.Source
---@return string
local function line_of(source)
  return vim.trim(("%s  %s"):format(sources.label(source), text.clean_line(source.symbol)))
end

---@param request kvd.SearchRequest
---@param root string
---@param result table
local function show(request, root, result)
  for _, notice in ipairs(result.notices or {}) do
    vim.notify("kvd: " .. text.clean_line(notice), vim.log.levels.WARN)
  end
  local found = result.sources ---@type kvd.Source[]
  if #found == 0 then
    return text.inform("nothing relevant was found")
  end
  if request.quickfix then
    sources.to_quickfix(root, found, "kvd search: " .. result.query)
    return vim.cmd("botright copen")
  end
  local window = vim.api.nvim_get_current_win()
  local options = { prompt = "kvd: " .. text.clean_line(result.query), kind = "kvd", format_item = line_of }
  vim.ui.select(found, options, function(source)
    if source then
      local target = vim.api.nvim_win_is_valid(window) and window or vim.api.nvim_get_current_win()
      sources.open(target, root, source.path, source.start_line)
    end
  end)
end

---@param request kvd.SearchRequest
---@param root string
---@param query string
local function send(request, root, query)
  local doing = activity.begin("searching")
  local params = {
    query = query,
    repo = root,
    top_k = config.options.top_k,
    paths = request.paths,
    languages = request.languages,
  }
  connection.request("search", params, {
    progress = function(value)
      if value.kind == "stage" then
        doing.say(text.stage(value))
      end
    end,
    done = function(problem, result)
      doing.finish()
      if result then
        show(request, root, result)
      else
        text.fail(assert(problem))
      end
    end,
  })
end

---@param request kvd.SearchRequest
function M.run(request)
  local root = repository.root(0)
  local query = vim.trim(request.query or "")
  if query ~= "" then
    return send(request, root, query)
  end
  vim.ui.input({ prompt = "Search with kvd: " }, function(typed)
    typed = vim.trim(typed or "")
    if typed ~= "" then
      send(request, root, typed)
    end
  end)
end

return M
