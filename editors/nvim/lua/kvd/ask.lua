---A question, and its answer as it comes.
local activity = require("kvd.activity")
local config = require("kvd.config")
local connection = require("kvd.connection")
local passages = require("kvd.passage")
local repository = require("kvd.repository")
local sources = require("kvd.sources")
local text = require("kvd.text")
local windows = require("kvd.window")

local M = {}

---@class kvd.AskRequest
---@field question? string
---@field first? integer with `last`: lines of the buffer that the question is about
---@field last? integer
---@field paths? string[] patterns as in .gitignore: only this part of the repository
---@field languages? string[] only code of these languages

---@class kvd.Answer
---@field window kvd.Window
---@field root string
---@field question string
---@field sources kvd.Source[]
---@field places table<integer, kvd.Source> by line of the buffer
---@field request? kvd.Request while it is being answered
---@field held string blanks that are shown only if something follows
---@field begun boolean

---@type kvd.Answer?
local shown

local longest = 20000
local keys = "Enter: open source · q: close"

---@param answer kvd.Answer
---@param piece string
local function stream(answer, piece)
  piece = answer.held .. text.clean(piece)
  if not answer.begun then
    piece = piece:gsub("^%s+", "")
  end
  local said = piece:gsub("%s+$", "")
  answer.held = piece:sub(#said + 1)
  if said ~= "" then
    answer.begun = true
    answer.window:append(said)
  end
end

---@param result table
---@return string words where the code came from, and how soon the answer began
local function figures(result)
  local tokens, times = result.tokens, result.timings_ms
  local memory = tokens.resident + tokens.reused_hot
  local computed = tokens.recomputed + tokens.prefilled
  local parts = {}
  for _, part in ipairs({ { memory, "from memory" }, { tokens.reused_cold, "from disk" }, { computed, "computed" } }) do
    if part[1] > 0 then
      table.insert(parts, ("%d %s"):format(part[1], part[2]))
    end
  end
  local detail = #parts > 0 and (" (%s)"):format(table.concat(parts, ", ")) or ""
  local line = ("%s of code%s · first word after %.1f s"):format(
    text.counted(tokens.recalled, "token"),
    detail,
    times.ttft / 1000
  )
  if times.model_load > 0 then
    line = line .. (", not counting %.1f s to load the model"):format(times.model_load / 1000)
  end
  return ("%s · %s"):format(line, text.clean_line(result.model))
end

---@param answer kvd.Answer
local function append_sources(answer)
  local window = answer.window
  window:append("\n\n## Sources\n")
  for number, source in ipairs(answer.sources) do
    local symbol = text.clean_line(source.symbol)
    local cited = source.cited and " · cited" or ""
    window:append(("\n%d. `%s` %s%s"):format(number, sources.label(source), symbol, cited))
    answer.places[vim.api.nvim_buf_line_count(window.buffer)] = source
  end
end

---What follows an answer that was cut off within code is no code.
---@param answer kvd.Answer
local function close_fence(answer)
  local fences = 0
  for _, line in ipairs(vim.api.nvim_buf_get_lines(answer.window.buffer, 0, -1, false)) do
    fences = fences + (line:find("^%s*```") and 1 or 0)
  end
  if fences % 2 == 1 then
    answer.window:append("\n```")
  end
end

---@param answer kvd.Answer
---@param result table
local function complete(answer, result)
  answer.sources = result.sources
  if not answer.begun then
    stream(answer, result.answer)
  end
  close_fence(answer)
  if result.finish == "length" then
    answer.window:append("\n\n*Cut off: the answer reached its limit (`max_tokens`).*")
  end
  if #result.sources > 0 then
    append_sources(answer)
    if config.options.quickfix then
      sources.to_quickfix(answer.root, result.sources, "kvd: " .. answer.question)
    end
  end
  for _, notice in ipairs(result.notices or {}) do
    answer.window:append(("\n\n*%s*"):format(text.clean_line(notice)))
  end
  if result.model then
    answer.window:append(("\n\n%s"):format(figures(result)))
  end
  answer.window:say(#result.sources > 0 and keys or "q: close")
end

---The one message about what went wrong: in the window where that is shown.
---@param answer kvd.Answer
---@param problem kvd.Error
local function break_off(answer, problem)
  if not answer.window.window then
    return text.fail(problem)
  end
  close_fence(answer)
  local between = answer.begun and "\n\n" or ""
  if problem.code == "cancelled" then
    answer.window:append(between .. "*Cancelled.*")
  else
    local hint = problem.hint ~= "" and "\nhint: " .. text.clean_line(problem.hint) or ""
    answer.window:append(between)
    answer.window:append(("kvd: %s%s"):format(text.clean_line(problem.message), hint), "DiagnosticError")
  end
  answer.window:say("q: close")
end

---@param answer kvd.Answer
local function open_source(answer)
  local row, column = unpack(vim.api.nvim_win_get_cursor(0))
  local source = answer.places[row]
  -- Citations are numbered as the sources are.
  for from, number, to in vim.api.nvim_get_current_line():gmatch("()%[(%d+)%]()") do
    if column + 1 >= from and column + 1 < to then
      source = answer.sources[tonumber(number)]
    end
  end
  if not source then
    return text.inform("there is no source under the cursor")
  end
  local target = answer.window.from
  if vim.api.nvim_win_get_config(0).relative ~= "" then
    answer.window:close()
  end
  if not vim.api.nvim_win_is_valid(target) then
    vim.cmd.new()
    target = vim.api.nvim_get_current_win()
  end
  sources.open(target, answer.root, source.path, source.start_line)
end

---@param root string
---@param question string
---@param passage? kvd.Passage
---@return kvd.Answer
local function new_answer(root, question, passage)
  local window = windows.new("kvd: " .. question, "markdown")
  -- The file type's plugin does that since Neovim 0.11.
  pcall(vim.treesitter.start, window.buffer, "markdown")
  local answer =
    { window = window, root = root, question = question, sources = {}, places = {}, held = "", begun = false }
  window.closed = function()
    if answer.request then
      connection.cancel(answer.request)
    end
  end
  local about = passage and ("\n> `%s`"):format(text.clean_line(passage.label)) or ""
  window:append(("> %s%s\n\n"):format(text.clean(question):gsub("\n", "\n> "), about))
  vim.keymap.set("n", "<CR>", function()
    open_source(answer)
  end, { buffer = window.buffer, desc = "Open the source under the cursor" })
  vim.keymap.set("n", "<C-c>", function()
    window.closed()
  end, { buffer = window.buffer, desc = "Cancel" })
  return answer
end

---@param answer kvd.Answer
local function replace_shown(answer)
  local before = shown
  shown = answer
  if before then
    before.window:close()
    if vim.api.nvim_buf_is_valid(before.window.buffer) then
      vim.api.nvim_buf_delete(before.window.buffer, { force = true })
    end
  end
end

---@param request kvd.AskRequest
---@param root string
---@param question string
---@param passage? kvd.Passage
local function send(request, root, question, passage)
  local whole = question
  if passage then
    whole = ("%s\n\nThis is about %s:\n%s"):format(question, passage.label, passage.body)
  end
  if vim.fn.strchars(whole) > longest then
    return text.fail(text.problem("usage", "that is too much for one question", "select fewer lines"))
  end
  local answer = new_answer(root, question, passage)
  replace_shown(answer)
  answer.window:show()
  answer.window:say("asking the daemon · Ctrl-C: cancel")
  local doing = activity.begin("answering")
  local options = config.options
  answer.request = connection.request("ask", {
    question = whole,
    repo = root,
    top_k = options.top_k,
    budget = options.budget,
    max_tokens = options.max_tokens,
    rerank_ms = options.rerank_ms,
    paths = request.paths,
    languages = request.languages,
  }, {
    progress = function(value)
      if value.kind == "token" then
        stream(answer, value.text)
        answer.window:say("answering · Ctrl-C: cancel")
      elseif value.kind == "stage" then
        answer.window:say(text.stage(value) .. " · Ctrl-C: cancel")
      end
    end,
    done = function(problem, result)
      answer.request = nil
      doing.finish()
      if result then
        complete(answer, result)
      else
        break_off(answer, assert(problem))
      end
    end,
  })
end

---@param request kvd.AskRequest
function M.run(request)
  local again = shown and shown.window.buffer == vim.api.nvim_get_current_buf()
  local root = again and shown.root or repository.root(0)
  local passage = passages.of(root, request)
  local question = vim.trim(request.question or "")
  if question ~= "" then
    return send(request, root, question, passage)
  end
  local prompt = passage and ("Ask kvd about %s: "):format(passage.label) or "Ask kvd: "
  vim.ui.input({ prompt = prompt }, function(typed)
    typed = vim.trim(typed or "")
    if typed ~= "" then
      send(request, root, typed, passage)
    end
  end)
end

---Shows the last answer again.
function M.open()
  if not shown or not vim.api.nvim_buf_is_valid(shown.window.buffer) then
    return text.fail(text.problem("usage", "nothing was asked yet", ":Kvd ask"))
  end
  shown.window:show()
end

return M
