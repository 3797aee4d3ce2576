"""What `kvd doctor` looks at: this machine, the native code, the model, and the daemon."""
