"""What watches a whole store: one listing for each store and round, shared by all who look at it."""
