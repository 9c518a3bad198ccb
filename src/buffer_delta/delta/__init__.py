"""One Delta table: its log, its history, and the transactions that move it on."""
