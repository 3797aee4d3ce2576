---Brings the index up to date.
local activity = require("kvd.activity")
local connection = require("kvd.connection")
local repository = require("kvd.repository")
local text = require("kvd.text")

local M = {}

---@param summary table
---@return string
local function words(summary)
  local done = {}
  for _, kind in ipairs({ "added", "changed", "deleted", "unchanged" }) do
    if summary[kind] > 0 then
      table.insert(done, ("%d %s"):format(summary[kind], kind))
    end
  end
  local files, chunks = text.counted(summary.files, "file"), text.counted(summary.chunks, "chunk")
  local detail = #done > 0 and (" (%s)"):format(table.concat(done, ", ")) or ""
  return ("indexed %s: %s, %s%s, in %.1f s"):format(summary.repo, files, chunks, detail, summary.seconds)
end

function M.run()
  local doing = activity.begin("indexing")
  connection.request("index", { path = repository.root(0) }, {
    progress = function(value)
      if value.kind == "stage" then
        doing.say(text.stage(value))
      end
    end,
    done = function(problem, summary)
      doing.finish()
      if summary then
        text.inform(words(summary))
      else
        text.fail(assert(problem))
      end
    end,
  })
end

return M
