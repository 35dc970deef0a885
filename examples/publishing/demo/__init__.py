"""The demo: four acts with real publishers in processes of their own, a display, and an oracle that judges the
result."""
