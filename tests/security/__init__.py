"""A second user of the machine attacks studies."""
