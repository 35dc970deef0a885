"""Tools for testing stores and code that uses locks; shipped, but never imported by the library itself."""
