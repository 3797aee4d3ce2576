"""What is in a repository: its files as git sees them, their text, and the pieces worth recalling."""
