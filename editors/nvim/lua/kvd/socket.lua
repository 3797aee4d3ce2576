---Where the daemon listens. docs/protocol.md, "Connecting", has the rules.
local text = require("kvd.text")

local M = {}

-- In bytes: the kernel's field is little longer.
local longest = 100

---@param folder string
---@return boolean
local function is_own(folder)
  local status = vim.startswith(folder, "/") and vim.uv.fs_stat(folder)
  return status and status.type == "directory" and status.uid == vim.uv.getuid() or false
end

---@return string
local function folder()
  local user = vim.uv.getuid()
  for _, base in ipairs({ vim.env.XDG_RUNTIME_DIR or "", "/run/user/" .. user }) do
    if is_own(base) then
      local found = vim.fs.joinpath(base, "kvd")
      if #found + #"/daemon.sock" <= longest then
        return found
      end
      return ("/tmp/kvd-%d-%s"):format(user, vim.fn.sha256(found):sub(1, 8))
    end
  end
  return "/tmp/kvd-" .. user
end

---@return string? path of the socket, whether or not it is there
---@return kvd.Error? problem where the folder could be another user's trap
function M.path()
  local place = folder()
  local status = vim.uv.fs_lstat(place)
  local open = status and bit.band(status.mode, tonumber("77", 8)) ~= 0
  if status and (status.type ~= "directory" or status.uid ~= vim.uv.getuid() or open) then
    local hint = ("remove it, or run: chmod 700 %s"):format(place)
    return nil, text.problem("unavailable", ("the runtime folder %s is not yours alone"):format(place), hint)
  end
  return vim.fs.joinpath(place, "daemon.sock")
end

return M
