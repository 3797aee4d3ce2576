---Sources of an answer or a search: places in the repository.
local text = require("kvd.text")

local M = {}

---@class kvd.Source
---@field path string relative to the root
---@field start_line integer
---@field end_line integer
---@field symbol string
---@field cited? boolean of an answer only

---@param source kvd.Source
---@return string label as `path:first-last`
function M.label(source)
  return text.clean_line(("%s:%d-%d"):format(source.path, source.start_line, source.end_line))
end

---@param root string
---@param sources kvd.Source[]
---@param title string
function M.to_quickfix(root, sources, title)
  local items = vim.tbl_map(function(source)
    local cited = source.cited and " (cited)" or ""
    return {
      filename = vim.fs.joinpath(root, source.path),
      lnum = source.start_line,
      end_lnum = source.end_line,
      text = text.clean_line(source.symbol) .. cited,
    }
  end, sources)
  vim.fn.setqflist({}, " ", { title = text.clean_line(title), items = items })
end

---Shows a line of a file in the window.
---@param window integer
---@param root string
---@param path string relative to the root
---@param line integer
function M.open(window, root, path, line)
  local file = vim.fs.joinpath(root, path)
  if not vim.uv.fs_stat(file) then
    return text.fail(text.problem("failed", path .. " is not there any more", ":Kvd index"))
  end
  vim.api.nvim_set_current_win(window)
  vim.cmd("normal! m'")
  local buffer = vim.fn.bufadd(file)
  local shown, reason = pcall(vim.api.nvim_win_set_buf, window, buffer)
  if not shown then
    return text.fail(text.problem("failed", ("can't open %s here: %s"):format(path, reason)))
  end
  vim.bo[buffer].buflisted = true
  vim.api.nvim_win_set_cursor(window, { math.min(line, vim.api.nvim_buf_line_count(buffer)), 0 })
  vim.cmd("normal! zvzz")
end

return M
