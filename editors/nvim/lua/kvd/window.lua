---The window that text is shown in: a float or a split, with a title and a line about what is being done.
local config = require("kvd.config")
local text = require("kvd.text")

local marks = vim.api.nvim_create_namespace("kvd")

---@class kvd.Window
---@field buffer integer
---@field window? integer while it is shown
---@field from integer the window that it was opened from
---@field title string
---@field state string
---@field closed fun() called when the user closes the window
local Window = {}
Window.__index = Window

---@param share number
---@param whole integer
---@return integer
local function part(share, whole)
  return math.max(1, math.floor(share * whole))
end

---@param words string
---@param width integer in cells
---@return string
local function shortened(words, width)
  while vim.api.nvim_strwidth(words) > width do
    local cut = vim.fn.strcharpart(words, 0, math.max(0, vim.fn.strchars(words) - 2))
    words = cut .. "…"
    if cut == "" then
      break
    end
  end
  return words
end

---@return vim.api.keyset.win_config
function Window:layout()
  local options = config.options.window
  local lines = vim.o.lines - vim.o.cmdheight - 2
  local width = math.min(part(options.width, vim.o.columns), math.max(1, vim.o.columns - 2))
  local height = math.min(part(options.height, vim.o.lines), math.max(1, lines - 2))
  local layout = { ---@type vim.api.keyset.win_config
    relative = "editor",
    width = width,
    height = height,
    row = math.max(0, math.floor((lines - height) / 2)),
    col = math.floor((vim.o.columns - width) / 2),
    border = options.border,
  }
  if options.border ~= "none" then
    layout.title = shortened((" %s "):format(self.title), width)
    layout.footer = shortened((" %s "):format(self.state), width)
    layout.footer_pos = "right"
  end
  return layout
end

---@param buffer integer
---@return integer window
local function split(buffer)
  local options = config.options.window
  local vertical = options.kind == "vsplit"
  return vim.api.nvim_open_win(buffer, true, {
    split = vertical and "right" or "below",
    width = vertical and part(options.width, vim.o.columns) or nil,
    height = not vertical and part(options.height, vim.o.lines) or nil,
    win = -1,
  })
end

---Shows it and goes there, wherever it is.
function Window:show()
  if self.window then
    return vim.api.nvim_set_current_win(self.window)
  end
  self.from = vim.api.nvim_get_current_win()
  local floats = config.options.window.kind == "float"
  local window = floats and vim.api.nvim_open_win(self.buffer, true, self:layout()) or split(self.buffer)
  self.window = window
  for name, value in pairs({ wrap = true, linebreak = true, number = false, relativenumber = false, conceallevel = 0 }) do
    vim.wo[window][0][name] = value
  end
  local group = vim.api.nvim_create_augroup("kvd.window." .. window, {})
  vim.api.nvim_create_autocmd("WinClosed", {
    group = group,
    pattern = tostring(window),
    callback = function()
      vim.api.nvim_del_augroup_by_id(group)
      self.window = nil
      self.closed()
    end,
  })
  vim.api.nvim_create_autocmd("VimResized", {
    group = group,
    callback = function()
      self:decorate()
    end,
  })
  vim.api.nvim_win_set_cursor(window, { vim.api.nvim_buf_line_count(self.buffer), 0 })
  self:decorate()
end

---Brings size, title and state up to date.
function Window:decorate()
  if not self.window then
    return
  end
  if vim.api.nvim_win_get_config(self.window).relative ~= "" then
    vim.api.nvim_win_set_config(self.window, self:layout())
  else
    local room = vim.api.nvim_win_get_width(self.window) - vim.api.nvim_strwidth(self.state) - 2
    local title, state = shortened(self.title, room):gsub("%%", "%%%%"), self.state:gsub("%%", "%%%%")
    vim.wo[self.window][0].winbar = title .. "%=" .. state
  end
end

---@param state string
function Window:say(state)
  self.state = text.clean_line(state)
  self:decorate()
end

---Adds text at the end. A window whose cursor is in the last line follows.
---@param added string
---@param highlight? string group
function Window:append(added, highlight)
  local buffer = self.buffer
  if not vim.api.nvim_buf_is_valid(buffer) then
    return
  end
  local last = vim.api.nvim_buf_line_count(buffer)
  local following = vim.tbl_filter(function(window)
    return vim.api.nvim_win_get_cursor(window)[1] == last
  end, vim.fn.win_findbuf(buffer))
  vim.bo[buffer].modifiable = true
  local column = #vim.api.nvim_buf_get_lines(buffer, last - 1, last, true)[1]
  vim.api.nvim_buf_set_text(buffer, last - 1, column, last - 1, column, vim.split(added, "\n", { plain = true }))
  vim.bo[buffer].modifiable = false
  if highlight then
    local options = { end_row = vim.api.nvim_buf_line_count(buffer), hl_group = highlight, strict = false }
    vim.api.nvim_buf_set_extmark(buffer, marks, last - 1, 0, options)
  end
  for _, window in ipairs(following) do
    vim.api.nvim_win_set_cursor(window, { vim.api.nvim_buf_line_count(buffer), 0 })
  end
end

function Window:close()
  if self.window then
    -- The last window can't be closed; then it stays.
    pcall(vim.api.nvim_win_close, self.window, true)
  end
end

local M = {}

---@param title string
---@param filetype string
---@return kvd.Window
function M.new(title, filetype)
  local buffer = vim.api.nvim_create_buf(false, true)
  local window = setmetatable({
    buffer = buffer,
    from = vim.api.nvim_get_current_win(),
    title = text.clean_line(title),
    state = "",
    closed = function() end,
  }, Window)
  vim.api.nvim_buf_set_name(buffer, "kvd://" .. buffer)
  vim.bo[buffer].bufhidden = "hide"
  vim.bo[buffer].undolevels = -1
  vim.bo[buffer].modifiable = false
  vim.bo[buffer].filetype = filetype
  vim.keymap.set("n", "q", function()
    window:close()
  end, { buffer = buffer, nowait = true, desc = "Close" })
  return window
end

return M
