"""Small real programs under strace, which makes one system call after the other fail, or kills the program there."""
