"""Real servers for the tests: each is a child process on a free loopback port, with its own directory."""
