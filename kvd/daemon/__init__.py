"""The daemon: one per user, listens on a unix socket, survives its clients and its engine."""
