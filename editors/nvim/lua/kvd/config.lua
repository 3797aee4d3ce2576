local M = {}

---@class kvd.WindowOptions
---@field kind? "float"|"split"|"vsplit"
---@field width? number of a float or vsplit, as a share of the editor's columns
---@field height? number of a float or split, as a share of the editor's lines
---@field border? string|string[] of a float, as |nvim_open_win()| takes it

---@class kvd.Options
---@field executable? string the command `kvd`: a name in $PATH, or a path
---@field window? kvd.WindowOptions
---@field quickfix? boolean whether an answer's sources go into the quickfix list
---@field top_k? integer chunks of code that are recalled at most
---@field budget? integer tokens of code that are recalled at most
---@field max_tokens? integer of an answer
---@field rerank_ms? integer for how long the model may judge the chunks first

---@type kvd.Options
local defaults = {
  executable = "kvd",
  window = { kind = "float", width = 0.7, height = 0.7, border = "rounded" },
  quickfix = true,
}

---@type kvd.Options
M.options = vim.deepcopy(defaults)

---@alias kvd.Check fun(value: any): boolean

---@param least integer
---@return kvd.Check
local function whole(least)
  return function(value)
    return type(value) == "number" and value >= least and value % 1 == 0
  end
end

---@param value any
local function is_text(value)
  return type(value) == "string" and value ~= ""
end

---@param value any
local function is_share(value)
  return type(value) == "number" and value > 0 and value <= 1
end

---What a value has to be, in words, and whether it is.
---@type table<string, { [1]: string, [2]: kvd.Check }>
local checks = {
  executable = { "a name or a path", is_text },
  window = {
    "a table",
    function(value)
      return type(value) == "table"
    end,
  },
  ["window.kind"] = {
    'one of "float", "split", "vsplit"',
    function(value)
      return vim.list_contains({ "float", "split", "vsplit" }, value)
    end,
  },
  ["window.width"] = { "a number above 0, at most 1", is_share },
  ["window.height"] = { "a number above 0, at most 1", is_share },
  ["window.border"] = {
    "a name or a list",
    function(value)
      return is_text(value) or vim.islist(value)
    end,
  },
  quickfix = {
    "true or false",
    function(value)
      return type(value) == "boolean"
    end,
  },
  top_k = { "a whole number from 1", whole(1) },
  budget = { "a whole number from 64", whole(64) },
  max_tokens = { "a whole number from 1", whole(1) },
  rerank_ms = { "a whole number from 0", whole(0) },
}

---@param prefix string "" or "window."
---@return string[] names of the options there
local function names(prefix)
  local found = {}
  for name in pairs(checks) do
    local rest = vim.startswith(name, prefix) and name:sub(#prefix + 1)
    if rest and not rest:find(".", 1, true) then
      table.insert(found, rest)
    end
  end
  table.sort(found)
  return found
end

---@param options table
---@param prefix string
---@return string? what is wrong
local function fault(options, prefix)
  for name, value in vim.spairs(options) do
    local check = checks[prefix .. tostring(name)]
    if not check then
      return ("there is no option %s%s; there are %s"):format(prefix, name, table.concat(names(prefix), ", "))
    elseif not check[2](value) then
      return ("%s%s has to be %s, not %s"):format(prefix, name, check[1], vim.inspect(value))
    end
  end
  if prefix == "" and options.window then
    return fault(options.window, "window.")
  end
end

---Replaces all options: those that are not given get their defaults. Raises one error, and changes nothing then.
---@param options? kvd.Options
function M.set(options)
  options = options or {}
  local wrong = type(options) ~= "table" and "options are a table" or fault(options, "")
  if wrong then
    error("kvd: setup: " .. wrong, 0)
  end
  M.options = vim.tbl_deep_extend("force", vim.deepcopy(defaults), options)
end

return M
