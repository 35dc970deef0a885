"""Real servers for the tests: each a child process on a free loopback port, with a directory of its own."""
