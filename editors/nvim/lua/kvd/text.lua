---Text from repositories, models and the daemon, made safe to show; and the messages to the user.
local M = {}

---@class kvd.Error
---@field code string "cancelled" is the one that nobody has to be told of
---@field message string
---@field hint string what to type next, or ""

local removed = {
  "\27%[[0-?]*[ -/]*[@-~]", -- terminals' escape sequences
  "[%z\1-\8\11-\31\127]", -- control characters but \n and \t
  "\194[\128-\159]",
  "\216\156", -- what reorders text
  "\226\128[\142\143\168-\174]",
  "\226\129[\166-\169]",
}

---@param text string
---@return string text without control characters; line ends and tabs stay
function M.clean(text)
  for _, pattern in ipairs(removed) do
    text = text:gsub(pattern, "")
  end
  return text
end

---@param text string
---@return string text the same on one line
function M.clean_line(text)
  return (M.clean(text):gsub("[\n\t]", " "))
end

---@param code string
---@param message string
---@param hint? string
---@return kvd.Error
function M.problem(code, message, hint)
  return { code = code, message = message, hint = hint or "" }
end

---@param problem kvd.Error
---@return string line
function M.told(problem)
  local hint = problem.hint ~= "" and (" (hint: %s)"):format(problem.hint) or ""
  return M.clean_line(("kvd: %s%s"):format(problem.message, hint))
end

---Says what failed, in one message. Nothing where the user cancelled it.
---@param problem kvd.Error
function M.fail(problem)
  if problem.code ~= "cancelled" then
    vim.notify(M.told(problem), vim.log.levels.ERROR)
  end
end

---@param line string
function M.inform(line)
  vim.notify("kvd: " .. M.clean_line(line), vim.log.levels.INFO)
end

---@param count integer
---@param noun string
---@return string counted as `1 file`, `1,024 files`
function M.counted(count, noun)
  local digits = tostring(count):reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return ("%s %s%s"):format(digits, noun, count == 1 and "" or "s")
end

local titles = {
  ["first-index"] = "making the first index",
  rebuild = "making the index anew",
  scan = "looking at the files",
  index = "indexing",
  wait = "waiting",
  load = "loading the model",
  check = "checking once whether the model can reuse KV",
  prefill = "reading the code",
}
-- Their messages say nothing that the window has not said, or too much for one line.
local bare = { ["first-index"] = true, scan = true }

---@param value table a `$/progress` of the kind "stage"
---@return string line
function M.stage(value)
  local parts = { titles[value.stage] or value.stage }
  if (value.total or 0) > 0 then
    table.insert(parts, ("%d/%d"):format(value.done, value.total))
  end
  if value.message and value.message ~= "" and not bare[value.stage] then
    table.insert(parts, value.message)
  end
  return M.clean_line(table.concat(parts, " "))
end

return M
