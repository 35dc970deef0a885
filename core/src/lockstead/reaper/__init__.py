"""The reaper: alerts on overdue locks, and revokes those whose holders asked for it."""
