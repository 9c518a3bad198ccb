"""Crash tests with real processes and real parts: kill -9, SIGSTOP, a bad network, a server that dies."""
