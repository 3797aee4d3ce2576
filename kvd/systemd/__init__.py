"""systemd listens for the daemon and starts it when a client comes: the user units, and putting them in place."""
