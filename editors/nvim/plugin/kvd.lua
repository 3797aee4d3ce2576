-- Commands and nothing else: what they run is loaded when they are used.
if vim.g.loaded_kvd then
  return
end
vim.g.loaded_kvd = true

vim.api.nvim_create_user_command("Kvd", function(call)
  require("kvd.command").run(call)
end, {
  nargs = "*",
  range = true,
  desc = "Ask kvd about this repository",
  complete = function(lead, line)
    return require("kvd.command").complete(lead, line)
  end,
})

vim.api.nvim_create_user_command("KvdSearch", function(call)
  require("kvd.search").run({ query = call.args, quickfix = call.bang })
end, { nargs = "*", bang = true, desc = "Search this repository with kvd" })
