---Lines of a buffer that go with a question.
local repository = require("kvd.repository")

local M = {}

---@class kvd.Passage
---@field label string as `path:first-last`
---@field body string as Markdown

---@param root string
---@param request kvd.AskRequest
---@return kvd.Passage? passage nil where the question is about no lines
function M.of(root, request)
  if not request.first then
    return nil
  end
  local first, last = request.first, request.last or request.first
  local file = repository.file(0)
  local inside = file and vim.startswith(file, root .. "/")
  local path = inside and file:sub(#root + 2) or file or "[No Name]"
  local label = ("%s:%d-%d"):format(path, first, last)
  local lines = vim.api.nvim_buf_get_lines(0, first - 1, last, false)
  return { label = label, body = ("```%s\n%s\n```"):format(vim.bo.filetype, table.concat(lines, "\n")) }
end

return M
