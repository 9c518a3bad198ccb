"""The programs around a loader that are simulated, one small file each."""
