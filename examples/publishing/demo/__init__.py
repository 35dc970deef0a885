"""The demo: four acts, real publishers in processes of their own, a display, and an oracle that has the last word."""
