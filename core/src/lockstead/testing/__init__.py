"""Tools for testing what uses locks; shipped, and never imported by the library itself."""
