"""The programs that are simulated, one small file each."""
