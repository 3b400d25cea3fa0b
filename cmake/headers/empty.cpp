// An object library needs a source; what is wanted is its precompiled header.
