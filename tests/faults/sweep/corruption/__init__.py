"""Everything that is read after a restart, damaged in every way: what is not as it was written must be noticed."""
