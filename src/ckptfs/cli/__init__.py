"""Commands, one file each: they read arguments, ask a daemon or start one, and print. The work is done elsewhere."""
