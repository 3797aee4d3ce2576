"""An MCP server over stdin and stdout: agents search a repository, and ask about it, through the daemon."""
