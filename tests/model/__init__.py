"""The models of the protocol, checked by spin."""
