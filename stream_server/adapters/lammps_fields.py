"""Values in the memory of a LAMMPS, by the names that `dump custom` and `variable` give them."""

import difflib
from typing import Any

import numpy as np

# How many numbers LAMMPS has for an atom: 0 is one that is no row.
OF_ATOMS = dict.fromkeys(("id", "type", "molecule", "mask", "q", "radius", "rmass"), 0)
OF_ATOMS |= dict.fromkeys(("x", "v", "f", "omega", "angmom", "torque"), 3) | {"mu": 4}
KINDS = {"c": "compute", "f": "fix"}
# LAMMPS's library evaluates these for the present step; others may have read computes of an earlier one.
GLOBAL_COMPUTES = ("thermo_temp", "thermo_press", "thermo_pe")
# Constants of the library.
GLOBAL, ATOM = 0, 1
SCALAR, VECTOR, ARRAY, SIZE_VECTOR, SIZE_COLUMNS = 0, 1, 2, 3, 5


class LammpsFields:
    """The values of a run of LAMMPS: those of the atoms that this rank has, and those of all.

    Args:
        lmp: the `lammps.lammps` of the run.
    """

    def __init__(self, lmp: Any) -> None:
        self._lmp = lmp
        self._layouts: dict[str, tuple[int, int]] = {}
        of_ids = np.dtype(f"i{lmp.extract_setting('tagint')}")
        self._integers = {"id": of_ids, "molecule": of_ids, "type": np.dtype("i4"), "mask": np.dtype("i4")}

    def value(self, source: str) -> tuple[np.ndarray, bool]:
        """The present values of a field, and whether they are of the atoms; to be called on all ranks.

        Those of atoms lie in LAMMPS's memory, and change when it computes on.

        Raises:
            ValueError: LAMMPS has no such field, or no values of it that can be sent.
        """
        if source == "box":
            low, high, xy, yz, xz = self._lmp.extract_box()[:5]
            return np.array([low, high, (xy, xz, yz)]), False
        if source in OF_ATOMS:
            return self._rows(source, self._lmp.extract_atom(source), OF_ATOMS[source]), True
        kind, _, name = source.partition("_")
        if not (kind in KINDS and self._lmp.has_id(KINDS[kind], name)):
            raise ValueError(self._no_such(source))
        extract = self._lmp.extract_compute if kind == "c" else self._lmp.extract_fix
        if source not in self._layouts:
            self._layouts[source] = _layout(kind, name, extract)
        style, size = self._layouts[source]
        if style == ATOM:
            return self._rows(source, extract(name, ATOM, ARRAY if size else VECTOR), size), True
        if not size:
            return np.array([extract(name, GLOBAL, SCALAR)]), False
        return np.array([extract(name, GLOBAL, VECTOR, row) for row in range(size)]), False

    def _rows(self, source: str, pointer: Any, columns: int) -> np.ndarray:
        shape = (self._lmp.extract_setting("nlocal"), *([columns] if columns else []))
        if not shape[0]:
            return np.empty(shape, self._integers.get(source, np.float64))
        if not pointer:
            raise ValueError(f"LAMMPS has no {source!r} for these atoms: the field needs another atom_style")
        return np.ctypeslib.as_array(pointer[0] if columns else pointer, shape)

    def _no_such(self, source: str) -> str:
        of_ids = (f"{kind}_{name}" for kind, it in KINDS.items() for name in self._lmp.available_ids(it))
        known = ["box", *OF_ATOMS, *of_ids]
        hint = "".join(f"; did you mean {near!r}?" for near in difflib.get_close_matches(source, known, n=1))
        if source.startswith("v_"):
            hint = f"; write `fix NAME all ave/atom 1 1 N {source}`, or ave/time of one for all, and send f_NAME"
        return f"LAMMPS has no field {source!r}, only {', '.join(known)}{hint}"


def _layout(kind: str, name: str, extract: Any) -> tuple[int, int]:
    """Whether a compute or fix has values of atoms or of all, and how many: 0 is one number that is no row."""

    def size_of(style: int, type_: int) -> int | None:
        try:
            return int(extract(name, style, type_))
        except Exception as error:
            # The library of 2021 gives a null pointer; that of 2025 says it, also in the log.
            if isinstance(error, ValueError) or "does not compute" in str(error):
                return None
            raise

    what = f"the {KINDS[kind]} {name!r} has no values per atom"
    if kind == "c" and name in GLOBAL_COMPUTES:
        return GLOBAL, 0
    if (columns := size_of(ATOM, SIZE_COLUMNS)) is not None:
        return ATOM, columns
    if kind == "c":
        raise ValueError(
            f"{what}, and LAMMPS evaluates it at the right time steps for fixes alone: write `fix NAME all ave/time N "
            f"1 N c_{name}` before the fix that streams every N time steps, and send f_NAME"
        )
    if size_of(GLOBAL, SCALAR) is not None:
        return GLOBAL, 0
    if not (size := size_of(GLOBAL, SIZE_VECTOR)):
        raise ValueError(f"{what}, no scalar and no vector: it cannot be sent")
    return GLOBAL, size
