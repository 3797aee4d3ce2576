"""What `kvd bench` runs: measurements of kvd on real repositories, by hand, never as tests."""
