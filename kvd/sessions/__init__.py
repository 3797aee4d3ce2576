"""Conversations: what was asked and answered, and which code it was about."""
