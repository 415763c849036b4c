"""LAMMPS as a simulation of a study: its atoms, whose number may change, by LAMMPS's names.

In an input script (docs/guide/lammps.md; of LAMMPS as a library, too):

python stream here "from stream_server.adapters.lammps import LammpsStream; stream = LammpsStream('id x v f_pe')"
fix    stream all python/invoke 10 end_of_step stream
"""

import atexit
import ctypes
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

import numpy as np

from stream_server.adapters.lammps_fields import LammpsFields
from stream_server.client_api import Simulation, connect


class LammpsStream:
    """Fields of a run of LAMMPS, sent as one sample at each call; the label is LAMMPS's time step.

    Values have the units of LAMMPS's command `units`, in float64 or int32 (in a LAMMPS that was built as bigbig, id
    and molecule are int64). Those of n atoms are rows of `[{"max": …}, columns]` in study.json:

    - id, type, molecule, mask, q, radius, rmass: (n,). x, v, f, omega, angmom, torque: (n, 3). An atom is put back into
      a periodic box when LAMMPS builds neighbour lists; between, its x may be outside. mu, the dipole moment and its
      length: (n, 4).
    - c_ID and f_ID: (n,) or (n, columns), of a compute or fix that has values per atom.
    - f_ID of a fix that has a scalar or a vector, such as `ave/time`: (1,) or (values,). c_thermo_temp, c_thermo_press
      and c_thermo_pe: (1,).
    - box: (3, 3), its low ends in x, y, z, its high ends, and xy, xz, yz.

    Each MPI rank of LAMMPS is a client rank, and sends the atoms that it has, in LAMMPS's order. All ranks call.

    Args:
        fields: names between blanks; `energy=f_pe` is the field "energy" of study.json, which is LAMMPS's f_pe.
        lmp: the `lammps.lammps` of a program that runs LAMMPS as a library. Without one the object is for `fix
            python/invoke`: an error ends the process, and so does the end of a script before the last time step.
    """

    def __init__(self, fields: str, lmp: Any = None) -> None:
        self._sources = {name or source: source for name, _, source in (it.rpartition("=") for it in fields.split())}
        self._lmp = lmp
        self._simulation: Simulation | None = None
        self._last_step: int | None = None
        self._fields: LammpsFields | None = None
        self._done = self._is_stopped = False
        if lmp is None:
            # Python's own handler would only note Ctrl-C, and LAMMPS would compute on.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            atexit.register(self._check_end)

    def __call__(self, pointer: Any) -> None:
        """Send the present time step; called by `fix python/invoke` with the pointer to LAMMPS."""
        try:
            if self._lmp is None:
                self._lmp = _lammps(pointer)
            self.send()
            # Ranks learn at different steps that the study has ended: they go on to the end.
            if self._is_stopped and self._lmp.extract_setting("world_size") == 1:
                self._lmp.lib.lammps_force_timeout(self._lmp.lmp)
        except Exception as error:
            self._end_process(error)

    def send(self) -> bool:
        """Send the present time step of LAMMPS.

        Returns:
            False if the study wants no more time steps of this simulation. Ranks learn at different steps that it has
            ended, and must agree before they leave a loop.

        Raises:
            ValueError: LAMMPS has no such field, or no values of it that can be sent; its time step is not behind the
                last one; or as for `Simulation.send`.
            SimulationError: as for `Simulation.send`.
        """
        if self._done and self._lmp.extract_setting("world_size") == 1:
            return False
        # LAMMPS computes on all ranks together, also where some have learned that the study has ended.
        step, values = int(self._lmp.extract_global("ntimestep")), self._values()
        if self._done:
            return False
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(
                f"LAMMPS is at time step {step}, and has sent time step {self._last_step} before: write the lines that "
                "stream behind `reset_timestep`, and send each time step once"
            )
        self._simulation = self._simulation or self._connect()
        self._is_stopped = not self._simulation.send(step, **values)
        self._last_step, expected = step, self._simulation.time_steps
        if self._is_stopped or (expected and step == expected[-1]):
            self.finish()
        return not self._done

    def finish(self) -> None:
        """Wait until all that was sent has arrived. It is called by itself after the last of `study.time_steps`."""
        self._done = True
        if self._simulation is not None:
            self._simulation.finish()

    def __enter__(self) -> "LammpsStream":
        return self

    def __exit__(self, *raised: Any) -> None:
        if raised[0] is None:
            self.finish()
        elif self._simulation is not None:
            self._simulation.__exit__(*raised)

    def _connect(self) -> Simulation:
        rank, size, of_all = (self._lmp.extract_setting(it) for it in ("world_rank", "world_size", "universe_size"))
        if size != of_all:
            raise ValueError("LAMMPS runs several partitions: start one LAMMPS for each simulation, without -partition")
        return connect(rank=rank, num_ranks=size)

    def _values(self) -> dict[str, np.ndarray]:
        """All fields of this rank. LAMMPS computes on all ranks what is not of the atoms, and rank 0 sends it."""
        self._fields = self._fields or LammpsFields(self._lmp)
        values = {name: self._fields.value(source) for name, source in self._sources.items()}
        is_first = self._lmp.extract_setting("world_rank") == 0
        return {name: value for name, (value, is_of_atoms) in values.items() if is_of_atoms or is_first}

    def _check_end(self) -> None:
        """Refuse the end of a script that leaves the simulation unfinished."""
        if self._last_step is None:
            self._end_process(
                "LAMMPS ended, and no time step was sent: the script needs `fix stream all python/invoke N end_of_step "
                "stream` before a run of N time steps or more"
            )
        if self._done or self._simulation is None or os.environ.get("STREAM_CONNECTION") == "none":
            return
        expected = self._simulation.time_steps
        advice = 'if it is the last one, write `python stream here "stream.finish()"` at the end of the script'
        if expected:
            advice = f"the study expects them up to {expected[-1]}: run LAMMPS to there, or change study.time_steps"
        self._end_process(f"LAMMPS ended, and the last time step that was sent is {self._last_step}: {advice}")

    def _end_process(self, reason: object) -> NoReturn:
        """An error of LAMMPS would wait for its other ranks. When a process ends like this, mpirun ends them."""
        ctypes.CDLL(None).fflush(None)
        print(f"stream-server: ERROR: {reason}", file=sys.stderr, flush=True)
        if self._simulation is not None:
            self._simulation.__exit__(RuntimeError, RuntimeError(reason), None)
        sys.stdout.flush()
        os._exit(1)


def _lammps(pointer: Any) -> Any:
    try:
        return importlib.import_module("lammps").lammps(ptr=pointer)
    except (ImportError, AttributeError, OSError) as error:
        raise ValueError(
            f"the Python module of this LAMMPS is missing, or is another version's ({error}): Debian has it in "
            "python3-lammps, and a build of your own installs it with `make install-python`; PYTHONPATH finds it"
        ) from error
