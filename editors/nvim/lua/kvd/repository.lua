---Which repository a buffer belongs to.
local M = {}

---@param path string absolute
---@return string? root as the daemon finds it: a folder with a file `.git`, or one with a HEAD in it
local function git_root(path)
  return vim.fs.root(path, function(name, parent)
    if name ~= ".git" then
      return false
    end
    local marker = vim.fs.joinpath(parent, name)
    local status = vim.uv.fs_stat(marker)
    return status ~= nil and (status.type == "file" or vim.uv.fs_stat(marker .. "/HEAD") ~= nil)
  end)
end

---@param buffer integer
---@return string? path absolute; nil where the buffer is no file
function M.file(buffer)
  local name = vim.api.nvim_buf_get_name(buffer)
  if name == "" or vim.bo[buffer].buftype ~= "" or name:match("^%a[%w+.-]+://") then
    return nil
  end
  return vim.fs.normalize(vim.fn.fnamemodify(name, ":p"))
end

---@param buffer integer
---@return string root of the file's repository, else of the working folder's, else that folder
function M.root(buffer)
  local folder = vim.fs.normalize(vim.fn.getcwd())
  local file = M.file(buffer)
  return file and git_root(file) or git_root(folder) or folder
end

return M
