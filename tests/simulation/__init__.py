"""The protocol in virtual time, from seeds; and engines broken on purpose, which must be caught."""
