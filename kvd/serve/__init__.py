"""An OpenAI-compatible endpoint on this machine: chats ask about repositories, through the daemon."""
