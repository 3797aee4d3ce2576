---What `kvd status` prints, in a window.
local executable = require("kvd.executable")
local text = require("kvd.text")
local windows = require("kvd.window")

local M = {}

function M.run()
  executable.run({ "status" }, function(problem, stdout)
    if problem then
      return text.fail(problem)
    end
    local window = windows.new("kvd status", "")
    vim.bo[window.buffer].bufhidden = "wipe"
    window:append(text.clean(vim.trim(stdout)))
    window:show()
    window:say("q: close")
  end)
end

return M
