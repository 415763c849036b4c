"""Checks between the keys of a study, and between a study and its files."""

import json
from typing import Any

import pytest

from stream_server.config import check_ranks
from stream_server.config.loading import without_training
from stream_server.config.placeholders import BUILT_IN
from stream_server.errors import ConfigError
from stream_server.launcher.simulations import attempt_folders
from tests.support.studies import StudyFolder


def test_the_capacity_covers_the_watermark_and_the_simulations_at_once(folder: StudyFolder) -> None:
    changes = {"buffer.capacity": 512, "buffer.watermark": 500, "launcher.max_running": 8}
    assert folder.load(changes).buffer.capacity == 512
    assert folder.problem({**changes, "buffer.capacity": 511}) == (
        "buffer.capacity: must be at least buffer.watermark + launcher.max_running + client.max_attached (500 + 8 + 4)"
        ", but is 511: ranks could wait for each other for ever. Write 512 or more, or make one of the others smaller."
    )


def test_without_a_command_only_attached_simulations_count(folder: StudyFolder) -> None:
    changes = {"simulation.command": ..., "buffer.capacity": 24, "buffer.watermark": 20}
    assert folder.load(changes).max_simulations_at_once == 4
    assert "buffer.watermark + client.max_attached (20 + 4)" in folder.problem({**changes, "buffer.capacity": 23})


def test_the_capacity_covers_a_batch(folder: StudyFolder) -> None:
    changes = {"buffer.policy": "fifo", "buffer.capacity": 14}
    assert "training.batch_size + launcher.max_running" in folder.problem(changes)
    assert folder.load({**changes, "buffer.capacity": 15})


def test_the_watermark_can_be_reached(folder: StudyFolder) -> None:
    changes = {"study.simulations": 4, "study.time_steps": 100, "buffer.watermark": 401}
    assert "the study sends 400 to a rank in all (4 simulations of 100 time steps)" in folder.problem(changes)
    assert folder.load({**changes, "buffer.watermark": 400})
    assert folder.load({**changes, "study.time_steps": None})


def test_the_watermark_can_be_reached_on_every_rank(folder: StudyFolder) -> None:
    config = folder.load({"study.simulations": 4, "buffer.watermark": 200})
    check_ranks(config, 2)
    with pytest.raises(ConfigError, match=r"sends 133 to a rank in all .* on 3 ranks"):
        check_ranks(config, 3)


def test_one_is_told_as_one(folder: StudyFolder) -> None:
    changes = {"study.simulations": 1, "study.time_steps": 1, "buffer.watermark": 2}
    assert "(1 simulation of 1 time step)" in folder.problem(changes)


def test_routing_by_simulations_needs_a_simulation_for_each_rank(folder: StudyFolder) -> None:
    config = folder.load({"buffer.routing": "simulations", "launcher.max_running": 2, "client.max_attached": 1})
    check_ranks(config, 3)
    with pytest.raises(ConfigError, match="needs 4 simulations at once, one for each rank, but at most 3 run"):
        check_ranks(config, 4)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"buffer.pseudo_epochs": 2}, "buffer.pseudo_epochs: 2 would be ignored, since it is not for reservoir"),
        (
            {"buffer.policy": "fifo", "buffer.watermark": 5},
            "buffer.watermark: 5 would be ignored, since it is not for fifo",
        ),
        ({"buffer.policy": "firo", "training.draws_per_sample": 2}, "training.draws_per_sample: 2.0 would be ignored"),
        (
            {"buffer.policy": "firo", "buffer.routing": "simulations"},
            'buffer.routing: "simulations" is for the reservoir',
        ),
        (
            {"simulation.on_failure": "stop", "simulation.max_failed": 0.5},
            "simulation.max_failed: 0.5 would be ignored",
        ),
        ({"simulation.command": None, "simulation.retries": 5}, "simulation.retries: 5 would be ignored"),
        ({"simulation.command": None, "launcher.max_running": 5}, "launcher.max_running: 5 would be ignored"),
        ({"simulation.command": None, "client.max_attached": 0}, "nobody could send anything"),
        ({"client.if_server_away": "stop", "client.wait_s": 5}, "client.wait_s: 5.0 would be ignored"),
        ({"validation.after_batches": 5}, "validation.after_batches: 5 would be ignored, since no validation takes"),
        (
            {"validation.at": [3, 9], "validation.after_batches": 5},
            "validation.at: 3 is before validation.after_batches. Write a later batch",
        ),
        (
            {"training.draws_per_sample": 1, "validation.at": [9, 0.5], "validation.after_batches": 5},
            "validation.at: whether a fraction of the run is before validation.after_batches is not known in advance.",
        ),
        (
            {"validation.simulations": 1, "validation.max_batches": 5, "study.time_steps": None},
            "validation.max_batches: which samples there will be is not known in advance. Write study.time_steps",
        ),
        (
            {"training.device": "cpu", "training.precision": "16-mixed"},
            'training.precision: "16-mixed" needs a GPU, but training.device is "cpu". Write "bf16-mixed" or "32-true"',
        ),
        ({"parameters.bounds": ...}, "parameters: neither bounds nor file is given."),
        ({"parameters.file": "design.csv"}, "parameters: both bounds and file are given."),
        ({"study.output_dir": ".."}, "study.output_dir:"),
        ({"network.ports": [6000, 5000]}, "network.ports: low (6000) is above high (5000). Write [5000, 6000]."),
    ],
    ids=str,
)
def test_settings_that_exclude_each_other_or_would_be_ignored_are_refused(
    folder: StudyFolder, changes: dict[str, Any], problem: str
) -> None:
    folder.write("design.csv", "initial,left\n" + "1,2\n" * 100)
    assert problem in folder.problem(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"buffer.policy": "firo", "buffer.pseudo_epochs": 3},
        {"training.draws_per_sample": 1},
        {"buffer.routing": "simulations"},
        {"training.precision": "bf16-mixed", "training.accumulate": 2, "training.clip_norm": 1.0},
        {"training.uneven": "stop", "training.nonfinite": "keep", "training.max_batches": 1, "training.max_s": 0.5},
        {"parameters.bounds": {}, "simulation.command": ["heat", "{seed}"]},
        {"client.if_server_away": "continue", "client.window": "1MiB"},
        {"client.wait_s": 5},
        {"launcher.restarts": 0},
        {"checkpoint.every_batches": 5, "checkpoint.every_s": 7.5, "checkpoint.keep": 3},
        {"checkpoint.dir": "saved", "checkpoint.record": True, "checkpoint.allow_pickle": True},
        {"simulation.job.environment": {"A": "b"}, "server.job.environment": {"A": "b"}},
        {"simulation.job.cores_per_rank": 2},
        {
            "launcher.backend": "slurm",
            "launcher.max_queued": 5,
            "simulation.ranks": 2,
            "simulation.job": {
                "partition": "gpu",
                "account": "physics",
                "walltime": "01:30:00",
                "nodes": 2,
                "gpus_per_rank": 1,
                "memory": "4GiB",
                "setup": ["module load gcc"],
                "options": {"qos": "low", "exclusive": True},
            },
        },
        {"server.backend": "slurm", "server.ranks": 2, "server.job": {"nodes": 2, "options": {"qos": "low"}}},
        {"launcher.backend": "slurm-steps", "simulation.ranks": 2, "simulation.job": {"memory": "1GiB", "options": {}}},
        {"launcher.backend": "pbs", "simulation.job": {"memory": "1GiB", "options": {"W": "group_list=x"}}},
        {"launcher.backend": "lsf", "launcher.max_queued": 5, "simulation.job.options": {"app": "mpi"}},
        {"launcher.backend": "flux", "simulation.job": {"walltime": "01:00:00", "options": {"setattr": "x=1"}}},
        {"launcher.backend": "oar", "server.backend": "oar", "simulation.job.options": {"property": "cpu_model='x'"}},
    ],
    ids=str,
)
def test_settings_that_are_used_are_accepted(folder: StudyFolder, changes: dict[str, Any]) -> None:
    folder.load(changes)


@pytest.mark.parametrize(
    ("policy", "key", "value", "reason"),
    [
        ("fifo", "watermark", 5, "it is not for fifo"),
        ("reservoir", "pseudo_epochs", 2, "it is not for reservoir or uniform or fifo"),
        ("firo", "args", {"a": 1}, "only policies of your own take arguments"),
    ],
)
def test_a_key_that_the_policy_has_not_is_refused(
    folder: StudyFolder, policy: str, key: str, value: Any, reason: str
) -> None:
    told = f"buffer.{key}: {json.dumps(value)} would be ignored, since {reason}. Leave it out."
    assert folder.problem({"buffer.policy": policy, f"buffer.{key}": value}) == told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"simulation.per_job": 3, "launcher.max_running": 2},
            "launcher.max_running: 2, fewer than the 3 of simulation.per_job, which run at the same time. "
            "Write 3 or more; a multiple of 3 leaves no room unused.",
        ),
        (
            {"simulation.job.partition": "gpu"},
            'simulation.job.partition: "gpu" would be ignored, since launcher.backend is "local". Leave it out.',
        ),
        (
            {"launcher.backend": "slurm-steps", "simulation.job.walltime": "01:00:00"},
            'simulation.job.walltime: "01:00:00" would be ignored, since steps run within the allocation of the '
            "launcher. Leave it out.",
        ),
        (
            {"server.job.nodes": 2},
            'server.job.nodes: 2 would be ignored, since server.backend is "local". Leave it out.',
        ),
        (
            {"server.backend": "slurm", "server.ranks": {"min": 1, "max": 4}},
            'server.ranks: 1 to 4, but a job is submitted for one number of ranks (server.backend is "slurm"). '
            "Write 4. When the study is started again, another number may stand here.",
        ),
        (
            {"launcher.backend": "slurm", "simulation.job.walltime": "1h"},
            'simulation.job.walltime: "1h" is not a time. Write "HH:MM:SS", such as "01:30:00".',
        ),
        (
            {"simulation.command": None, "simulation.job.mpirun": ["mpirun"]},
            'simulation.job.mpirun: ["mpirun"] would be ignored, since without simulation.command no simulation is '
            "started. Leave it out.",
        ),
        (
            {"simulation.ranks": 2, "simulation.job.mpirun": ["mpirun", "-n", "{rank}"]},
            "simulation.job.mpirun[2]: {rank} would not be filled in. "
            "Write {ranks}, which stands for simulation.ranks; all else is a matter of the command.",
        ),
        (
            {"simulation.ranks": 2, "simulation.job.mpirun": []},
            "simulation.job.mpirun: the list is empty. Write a program and its arguments, or leave the key out.",
        ),
        (
            {"simulation.ranks": 2, "simulation.command": ["a", ":", "b"]},
            'simulation.command[1]: ":" separates programs on the command line of mpirun. Start a script that adds it.',
        ),
        *(
            (
                {"simulation.ranks": 2, "simulation.command": ["a", "b", word, "c"]},
                f'simulation.command[2]: Open MPI\'s mpirun takes "{word}" for an option of its own '
                "wherever it stands. "
                "Start a script that adds it.",
            )
            for word in ("--bind-to", "--map-by", "--rank-by", "--mca", "--gmca")
        ),
        (
            {"simulation.per_job": 2, "launcher.max_running": 2, "buffer.routing": "simulations"},
            'simulation.per_job: 2 with the routing "simulations" could wait for ever: a simulation that is done keeps '
            "its place as long as the others of its job run, and these wait for a rank that has none. "
            'Leave it out, or write "steps" in buffer.routing.',
        ),
    ],
    ids=str,
)
def test_what_cannot_be_started_by_mpirun_is_refused(folder: StudyFolder, changes: dict[str, Any], told: str) -> None:
    assert folder.problem(changes) == told


@pytest.mark.parametrize(
    "changes",
    [
        {"simulation.ranks": 4},
        {"simulation.per_job": 2, "launcher.max_running": 3},
        {"simulation.ranks": 4, "simulation.job.mpirun": ["mpiexec", "-np", "{ranks}", "--mca", "btl=tcp"]},
        {"simulation.job.mpirun": ["mpirun"]},
        {"simulation.command": ["a", ":", "--map-by", "b"]},
        {"simulation.ranks": 2, "buffer.routing": "simulations"},
    ],
    ids=str,
)
def test_parallel_simulations_are_accepted(folder: StudyFolder, changes: dict[str, Any]) -> None:
    folder.load(changes)


def test_a_word_of_mpirun_that_names_a_file_of_the_study_becomes_absolute(folder: StudyFolder) -> None:
    hosts = folder.write("hosts.txt", "localhost slots=4\n")
    config = folder.load({"simulation.ranks": 4, "simulation.job.mpirun": ["mpirun", "--hostfile", "hosts.txt"]})
    assert config.simulation.job.mpirun == ("mpirun", "--hostfile", str(hosts))


@pytest.mark.parametrize(
    "element",
    [
        "{initial}",
        "--x={initial:.3e}",
        "{simulation:06d}/{attempt}",
        "{seed}",
        "{study_dir}/mesh",
        "{}",
        '{"a": 1}',
        "${HOME}",
    ],
)
def test_an_element_of_the_command_may_hold(folder: StudyFolder, element: str) -> None:
    folder.load({"simulation.command": ["heat", element]})


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ("{intial}", "{intial} is neither a parameter nor built in. Write {initial}"),
        ("{zzz:.3f}", "Write one of {initial}, {left}, {simulation}, {attempt}, {seed}, {study_dir}."),
        ("{initial:d}", "{initial:d} has a format that does not fit"),
        ("{simulation:q}", "Write {simulation}, or {simulation:06d}."),
        ("{study_dir:d}", "{study_dir:d} has a format that does not fit"),
        ("{initial:99999}", "it asks for thousands of characters"),
        ("{ initial }", '"{ initial }" would not be filled in. Write {initial} or {initial:FORMAT}.'),
        ("{initial!r}", '"{initial!r}" would not be filled in.'),
    ],
)
def test_an_element_of_the_command_may_not_hold(folder: StudyFolder, element: str, problem: str) -> None:
    found = folder.problem({"simulation.command": ["heat", f"--x={element}"]})
    assert found.startswith("simulation.command[1]: ")
    assert problem in found


def test_the_placeholders_are_those_that_the_launcher_fills_in(folder: StudyFolder) -> None:
    filled_in = attempt_folders.placeholders({}, simulation=1, attempt=0, seed=0, study_dir=folder.path)
    assert {name: type(value) for name, value in filled_in.items()} == {
        name: type(value) for name, value in BUILT_IN.items()
    }


def test_a_parameter_cannot_have_the_name_of_a_placeholder(folder: StudyFolder) -> None:
    assert "{seed} already stands for something else" in folder.problem({"parameters.bounds.seed": [0, 1]})


def test_the_placeholders_of_templates_are_checked(folder: StudyFolder) -> None:
    folder.write("input.nml", "&heat initial={initial:.3f}, right={right} / { c-block; } ${HOME}")
    assert folder.problem({"simulation.templates": ["input.nml"]}) == (
        "simulation.templates[0]: in input.nml, {right} is neither a parameter nor built in. "
        "Write one of {initial}, {left}, {simulation}, {attempt}, {seed}, {study_dir}."
    )


def test_a_template_that_is_not_there_is_told(folder: StudyFolder) -> None:
    assert "there is no file" in folder.problem({"simulation.templates": ["input.nml"]})


FROM_FILE = {"parameters": {"file": "design.csv"}, "study.simulations": 2, "buffer.watermark": 1}


def test_the_names_of_a_design_file_fill_placeholders(folder: StudyFolder) -> None:
    folder.write("design.csv", "initial, left\n1, 2\n3, 4e-3\n")
    folder.load(FROM_FILE)
    assert "{left} is neither" in folder.problem(
        {**FROM_FILE, "simulation.command": ["heat", "{left}"]} | _csv(folder, "a\n1\n2\n")
    )


def _csv(folder: StudyFolder, text: str) -> dict[str, Any]:
    folder.write("design.csv", text)
    return {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("initial,left\n1,2\n", "it has 1 row for 2 + 0 simulations."),
        ("initial,left\n1,2\n3\n", "line 3 has 1 value for 2 columns."),
        ("initial,left\n1,2\n3,x\n", "line 3: could not convert string to float: 'x'."),
        ("initial,left\n1,2\n3,nan\n", "line 3 holds a value that is not finite."),
        ("initial,le ft\n1,2\n3,4\n", '"le ft" is not a name'),
        ("initial,initial\n1,2\n3,4\n", 'the column "initial" is there twice.'),
        ("simulation,initial,left\n1,1,2\n0,3,4\n", "must count 0, 1, 2, …."),
        ("initial,left,seed\n1,2,3\n3,4,5\n", "{seed} already stands for something else."),
        ("", "is empty."),
    ],
)
def test_a_design_file_is_checked(folder: StudyFolder, text: str, problem: str) -> None:
    folder.write("design.csv", text)
    found = folder.problem(FROM_FILE)
    assert found.startswith("parameters.file: ")
    assert problem in found


def test_a_design_file_that_is_not_there_is_the_only_problem(folder: StudyFolder) -> None:
    assert "there is no file" in folder.problem(FROM_FILE)


def test_redrawing_from_a_design_file_needs_rows_to_spare(folder: StudyFolder) -> None:
    changes = {**FROM_FILE, "simulation.on_failure": "redraw"}
    folder.write("design.csv", "initial,left\n1,2\n3,4\n")
    assert '"redraw" would have no row to take' in folder.problem(changes)
    folder.write("design.csv", "initial,left\n1,2\n3,4\n5,6\n")
    folder.load(changes)


def test_a_sampler_beside_a_file_would_be_ignored(folder: StudyFolder) -> None:
    folder.write("design.csv", "initial,left\n1,2\n3,4\n")
    assert "would be ignored" in folder.problem({**FROM_FILE, "parameters": {"file": "design.csv", "sampler": "lhs"}})


WINDOWS: dict[str, Any] = {"samples": {"window": {"length": 5, "spacing": 2}}}


def test_windows_are_made_on_the_rank_that_has_the_whole_simulation(folder: StudyFolder) -> None:
    config = folder.load(WINDOWS)
    assert (config.samples_per_simulation, config.buffer.routing) == (92, "simulations")
    assert folder.load({}).buffer.routing == "steps"


def test_the_time_steps_of_windows_are_not_dealt_to_all_ranks(folder: StudyFolder) -> None:
    assert folder.problem({**WINDOWS, "buffer.routing": "steps"}) == (
        'buffer.routing: "steps" deals the time steps of a simulation to all ranks, but windows are made of those on '
        'one rank. Leave it out, or write "simulations".'
    )


@pytest.mark.parametrize(("num_ranks", "fewest"), [(1, 7), (2, 3), (3, 2), (5, 1)])
def test_the_watermark_of_windows_is_one_that_the_rank_with_the_fewest_simulations_reaches(
    folder: StudyFolder, num_ranks: int, fewest: int
) -> None:
    changes = {**WINDOWS, "study.simulations": 7, "buffer.capacity": 2000}
    check_ranks(folder.load({**changes, "buffer.watermark": fewest * 92}), num_ranks)
    if num_ranks > 1:
        with pytest.raises(ConfigError, match=f"sends {fewest * 92} to a rank"):
            check_ranks(folder.load({**changes, "buffer.watermark": fewest * 92 + 1}), num_ranks)


def test_a_window_must_fit_into_a_simulation(folder: StudyFolder) -> None:
    changes = {**WINDOWS, "study.time_steps": 9, "buffer.watermark": 100}
    assert folder.load(changes).samples_per_simulation == 1
    assert folder.problem({**changes, "study.time_steps": 8}) == (
        "samples.window: 5 steps with a spacing of 2 reach over 9 time steps, but a simulation has 8. Write a smaller "
        "length or spacing, or more study.time_steps."
    )


def test_a_window_has_several_steps(folder: StudyFolder) -> None:
    assert "samples.window.length" in folder.problem({**WINDOWS, "samples": {"window": {"length": 1}}})


def test_the_watermark_counts_windows(folder: StudyFolder) -> None:
    changes = {**WINDOWS, "study.simulations": 4, "buffer.watermark": 4 * 92}
    assert folder.load(changes)
    assert "(4 simulations of 92 windows)" in folder.problem({**changes, "buffer.watermark": 4 * 92 + 1})


def test_a_capacity_in_bytes_has_room_for_all_steps_of_its_windows(folder: StudyFolder) -> None:
    changes = {"study.fields": {"u": {"shape": [100, 100], "dtype": "float32"}}, "buffer.capacity": "40MB"}
    assert folder.load(changes).buffer.capacity == 1000
    assert folder.load({**WINDOWS, **changes}).buffer.capacity == 200


@pytest.mark.parametrize("policy", ["fifo", "firo", "reservoir", "uniform"])
def test_windows_are_for_any_number_of_ranks_with_every_policy_however_few_simulations_run(
    folder: StudyFolder, policy: str
) -> None:
    few = {"buffer.policy": policy, "launcher.max_running": 1, "client.max_attached": 0}
    check_ranks(folder.load({**WINDOWS, **few}), 4)
    workers = {"simulation.command": ["python", "heat.py"], "simulation.per_worker": "many"}
    check_ranks(folder.load({**WINDOWS, **few, **workers}), 4)
    jobs = {"simulation.per_job": 2, "launcher.max_running": 2}
    check_ranks(folder.load({**WINDOWS, **few, **jobs}), 4)


def test_windows_need_a_simulation_for_each_rank(folder: StudyFolder) -> None:
    config = folder.load({**WINDOWS, "study.simulations": 3, "buffer.watermark": 92})
    check_ranks(config, 3)
    with pytest.raises(ConfigError, match=r"study.simulations: 3, fewer than the 4 ranks"):
        check_ranks(config, 4)


def test_workers_of_simulations_that_are_dealt_to_ranks_are_for_one_rank(folder: StudyFolder) -> None:
    workers = {"simulation.command": ["python", "heat.py"], "simulation.per_worker": "many"}
    by_simulations = {**workers, "buffer.routing": "simulations"}
    config = folder.load(by_simulations)
    check_ranks(config, 1)
    message = 'simulation.per_worker: "many" with the routing "simulations" on 2 ranks could wait for ever'
    with pytest.raises(ConfigError, match=message):
        check_ranks(config, 2)
    assert message in folder.problem({**by_simulations, "server.ranks": 2})
    check_ranks(folder.load(workers), 2)


ROLLOUT: dict[str, Any] = {**WINDOWS, "validation.simulations": 2, "validation.rollout": {}}


def test_rollouts_forecast_the_fields_of_the_steps_on_meshes_of_several_sizes(folder: StudyFolder) -> None:
    nodes = {"shape": [{"max": 5}, 2], "per": "simulation"}
    study = {"temperature": [{"max": 5}], "nodes": nodes}
    rollout = folder.load(ROLLOUT | {"study.fields": study}).validation.rollout
    assert rollout is not None
    assert rollout.fields == ("temperature",)


def test_rollouts_forecast_all_fields_from_all_steps_of_a_window_but_the_last(folder: StudyFolder) -> None:
    rollout = folder.load(ROLLOUT).validation.rollout
    assert rollout is not None
    assert (rollout.fields, rollout.input_steps, rollout.horizon) == (("temperature",), 4, None)
    assert folder.load().validation.rollout is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": None, "buffer.routing": "steps"}, "validation.rollout: a model of single time steps forecasts"),
        ({"validation.simulations": 0}, "validation.rollout: no simulation is held out. Write validation.simulations."),
        (
            {"validation.rollout": {"input_steps": 5}},
            "5 leaves none of the 5 steps of a sample to be forecast. Write 4",
        ),
        ({"validation.rollout": {"fields": ["temprature"]}}, 'not a field of the study. Write "temperature".'),
        ({"validation.rollout": {"fields": []}}, "validation.rollout.fields"),
        (
            {"validation.rollout": {"horizon": 47}},
            "validation.rollout.horizon: 47 steps, but after 4 input steps a simulation has 46. Write 46 or less",
        ),
    ],
)
def test_rollouts_that_nothing_could_be_forecast_for_are_refused(
    folder: StudyFolder, changes: dict[str, Any], message: str
) -> None:
    assert message in folder.problem({**ROLLOUT, **changes})


def test_statistics_of_complex_fields_are_refused(folder: StudyFolder) -> None:
    wave = {"study.fields": {"u": {"shape": [8], "dtype": "complex64"}, "v": [8]}}
    problem = folder.problem({**wave, "normalization.fields": ["v", "u"]})
    assert 'normalization.fields: "u" is complex64, and statistics are of real numbers. Leave it out' in problem
    assert folder.load({**wave, "normalization.fields": ["v"]})


def test_the_horizon_reaches_to_the_end_of_a_simulation(folder: StudyFolder) -> None:
    assert folder.load({**ROLLOUT, "validation.rollout": {"horizon": 46}})
    assert folder.load({**ROLLOUT, "study.time_steps": None, "validation.rollout": {"horizon": 1000}})


def test_windows_are_made_of_one_pass_over_files(folder: StudyFolder) -> None:
    problem = folder.problem({**WINDOWS, "offline.epochs": 2})
    assert "offline.epochs: 2 passes over the files, but windows are made in one. Leave it out, and write" in problem


def test_what_is_wrong_with_one_study_leaves_the_next_one_alone(folder: StudyFolder) -> None:
    with pytest.raises(ConfigError, match=r"server\.ranks\.max"):
        folder.load({"server.ranks": {"min": 1}})
    with pytest.raises(ConfigError, match=r"server\.ranks\.most"):
        folder.load({"server.ranks": {"max": 2, "most": 3}})
    assert folder.load().server.ranks.max == 1


def test_files_are_written_of_time_steps_whatever_is_made_of_them_later(folder: StudyFolder) -> None:
    written = without_training(folder.load({**ROLLOUT, "offline.write_files": True}))
    assert (written.samples, written.buffer.routing, written.validation.rollout) == (None, "steps", None)


ROUNDS = {"study.simulations": ..., "study.rounds": {"simulations": 25, "number": 4}}


def test_rounds_say_how_many_simulations_there_are(folder: StudyFolder) -> None:
    config = folder.load({**ROUNDS, "validation.simulations": 3})
    assert config.study.simulations == 100
    assert [config.num_released(rounds) for rounds in (0, 1, 3)] == [28, 53, 103]
    assert folder.load().num_released(0) is None
    assert folder.load({**ROUNDS, "study.simulations": 100}).study.simulations == 100
    problem = folder.problem({**ROUNDS, "study.simulations": 99})
    assert "study: simulations (99) are not 4 rounds of 25. Leave simulations out" in problem
    assert "study.simulations" in folder.problem({"study.simulations": ...})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"simulation.on_failure": "redraw"},
            'simulation.on_failure: "redraw" does not go with study.rounds: a redraw',
        ),
        ({"simulation.per_job": 2, "launcher.max_running": 2}, "simulation.per_job: 2 does not go with study.rounds"),
        ({"training.uneven": "stop"}, 'the study would end with the first one. Write "drain", or leave study.rounds'),
        ({"offline.write_files": True}, "offline.write_files: true does not go with study.rounds: nothing is trained"),
        (
            {"training.train_dataloader": {"class": "loaders.py:loader"}},
            "does not go with study.rounds: it may hold samples back, so that none would end. Write null, or leave",
        ),
        (
            {"parameters.sampler": {"class": "breed", "lookahead": 2}},
            "parameters.sampler.lookahead: 2 would be ignored, since the parameters of a round (study.rounds) are",
        ),
    ],
)
def test_what_does_not_go_with_rounds_is_refused_in_words(
    folder: StudyFolder, changes: dict[str, Any], problem: str
) -> None:
    assert problem in folder.problem({**ROUNDS, **changes})


def test_checkpoints_of_rounds_need_rounds(folder: StudyFolder) -> None:
    assert folder.load({**ROUNDS, "checkpoint.every_rounds": 2})
    assert "since there are no study.rounds" in folder.problem({"checkpoint.every_rounds": 2})
