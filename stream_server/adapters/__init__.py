"""Ways by which codes that are not changed take part in a study, on the client API alone.

`follow` sends what a code writes to files, `adios` what it writes by ADIOS2 or openPMD: each a command that starts the
code (`program`) and finds the study's fields in what it writes (`fields`). LAMMPS imports `lammps` from its input, and
OpenFOAM loads the function object that is compiled from `openfoam`.

Offers: none.
May import: client_api.
"""
