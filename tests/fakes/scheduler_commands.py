"""The commands of PBS, LSF and Flux as documented, and of OAR as seen; `install` puts them into a folder.

Each command is this file under its name. The jobs of the cluster are files of JSON in `FAKE_CLUSTER`; they run on this
machine, at most as many at once as its file `slots` says, and the first look after one has ended notes that. The file
`trouble` has the next answer of the command that submits: its exit code and words; `lost`: the job is queued before.
"""

import argparse
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

COMMANDS = (
    *("qsub", "qdel", "qsig", "qstat", "qselect", "bsub", "bkill", "bjobs", "flux"),
    *("oarsub", "oardel", "oarstat"),
)
GRACE_S = 0.5
Job = dict[str, Any]


def install(folder: Path) -> None:
    """Write the commands into `folder`/bin, for a cluster in `folder`."""
    bin_dir = folder / "bin"
    bin_dir.mkdir(parents=True)
    for name in COMMANDS:
        script = bin_dir / name
        script.write_text(f'#!/bin/sh\nFAKE_CLUSTER="{folder}" exec "{sys.executable}" -S "{__file__}" {name} "$@"\n')
        script.chmod(0o755)


class Cluster:
    """The jobs of a cluster, by their number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        slots = folder / "slots"
        self.slots = int(slots.read_text()) if slots.exists() else 100
        self.jobs: dict[int, Job] = {int(it.stem): json.loads(it.read_text()) for it in sorted(folder.glob("*.json"))}
        self.look()

    def add(self, **job: Any) -> int:
        number = max(self.jobs, default=100) + 1
        self.jobs[number] = {"state": "queued", "pid": 0, "how": "", **job}
        self._save(number)
        self.look()
        return number

    def look(self) -> None:
        """Note which have ended, and start others."""
        for number, job in sorted(self.jobs.items()):
            if job["state"] == "running":
                ended = self.folder / f"{number}.exit"
                if ended.exists() and not _runs(job["pid"]):
                    job |= {"state": "ended", "code": int(ended.read_text() or 1)}
                    self._save(number)
                elif job["limit_s"] and time.time() > job["started"] + job["limit_s"]:
                    self.end(number, "out of time")
        for number, job in sorted(self.jobs.items()):
            if job["state"] == "queued" and sum(it["state"] == "running" for it in self.jobs.values()) < self.slots:
                self._start(number, job)

    def end(self, number: int, how: str, *, at_once: bool = False) -> None:
        """TERM, and KILL a little later."""
        job = self.jobs[number]
        if job["state"] == "running":
            with suppress(ProcessLookupError):
                os.killpg(job["pid"], signal.SIGKILL if at_once else signal.SIGTERM)
            deadline = time.monotonic() + GRACE_S
            while _runs(job["pid"]) and time.monotonic() < deadline:
                time.sleep(0.01)
            for pid in _of_session(job["pid"]):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        job |= {"state": "ended", "how": how, "code": 143}
        self._save(number)

    def _start(self, number: int, job: Job) -> None:
        script = self.folder / f"{number}.sh"
        script.write_text(job["script"])
        ended = self.folder / f"{number}.exit"
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'trap : TERM; /bin/bash "$1"; echo $? >"$2.new"; mv "$2.new" "$2"', "job", script, ended],
            cwd="/",
            env={"HOME": os.environ["HOME"], "USER": "me", **job["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        job |= {"state": "running", "pid": process.pid, "started": time.time()}
        self._save(number)

    def _save(self, number: int) -> None:
        new = self.folder / f"{number}.new"
        new.write_text(json.dumps(self.jobs[number]))
        new.rename(self.folder / f"{number}.json")


def _processes() -> Iterator[tuple[int, list[str]]]:
    """All processes, with state, parent, group, session and more of each."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield int(stat.parent.name), stat.read_text().rpartition(")")[2].split()


def _of_session(pid: int) -> list[int]:
    """The processes of a session that are no zombies."""
    return [it for it, (state, _, _, session, *_) in _processes() if int(session) == pid and state != "Z"]


def _runs(pid: int) -> bool:
    """Whether any process of a session is left that is no zombie."""
    return bool(_of_session(pid))


def refuse(name: str, words: str, code: int = 1) -> NoReturn:
    print(f"{name}: {words}" if name else words, file=sys.stderr)
    sys.exit(code)


def trouble(name: str, cluster: Cluster, *, is_queued: bool) -> None:
    """The answer that a test has written down comes once."""
    file = cluster.folder / "trouble"
    told = json.loads(file.read_text()) if file.exists() else {}
    if told and told["lost"] == is_queued:
        file.unlink()
        refuse(name, told["words"], told["code"])


def submit(name: str, cluster: Cluster, arguments: argparse.Namespace, script: str, **more: Any) -> int:
    """Queue a job; what its submission said is kept for the test."""
    trouble(name, cluster, is_queued=False)
    job = {"words": sys.argv[2:], "script": script, "environment": {}, "limit_s": 0.0, **more}
    number = cluster.add(name=arguments.name, **job)
    trouble(name, cluster, is_queued=True)
    return number


def qsub(cluster: Cluster, words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="qsub", add_help=False, allow_abbrev=False)
    parser.add_argument("-N", dest="name")
    parser.add_argument("-l", action="append", default=[])
    for option in ("-j", "-o", "-r", "-q", "-A", "-W"):
        parser.add_argument(option)
    arguments = parser.parse_args(words)
    if arguments.q == "nosuch":
        refuse("qsub", "Unknown queue", 170)
    limits = [it.partition("=")[2] for it in arguments.l if it.startswith("walltime=")]
    h, m, s = map(int, limits[0].split(":")) if limits else (0, 0, 0)
    script = sys.stdin.read()
    number = submit(
        "qsub", cluster, arguments, script, environment={"PBS_JOBID": "7.pbs"}, limit_s=3600 * h + 60 * m + s
    )
    print(f"{number}.pbs")


def qselect(cluster: Cluster, words: list[str]) -> None:
    if (cluster.folder / "no-history").exists() and "-x" in words:
        refuse("qselect", "PBS is not configured to maintain job history", 18)
    for number, job in cluster.jobs.items():
        if "-x" in words or job["state"] != "ended":
            print(f"{number}.pbs")


def qstat(cluster: Cluster, words: list[str]) -> None:
    """As OpenPBS 23.06 prints jobs: long lines go on behind a tab. `left-out`: it says nothing of these."""
    refuse_json(words)
    left_out = cluster.folder / "left-out"
    silent = left_out.read_text().split() if left_out.exists() else []
    asked = [it for it in words if it.endswith(".pbs")]
    (cluster.folder / "asked").open("a").write(" ".join(asked) + "\n")
    jobs = {it: cluster.jobs.get(int(it.partition(".")[0]), {"state": "ended"}) for it in asked}
    known = {it: job for it, job in jobs.items() if "name" in job and ("-x" in words or job["state"] != "ended")}
    unknown = [it for it in asked if it not in known]
    for id_, job in known.items():
        if id_ in silent:
            continue
        lines = [f"Job_Name = {job['name']}", "Job_Owner = me@login"]
        lines.append(f"job_state = { {'queued': 'Q', 'running': 'R', 'ended': 'F'}[job['state']] }")
        if job["limit_s"]:
            s = int(job["limit_s"])
            lines.append(f"Resource_List.walltime = {s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}")
        substate = {"queued": 10, "running": 42, "ended": 91 if job["how"] == "deleted" else 92}
        lines += [f"substate = {substate[job['state']]}", "Variable_List = PBS_O_HOME=/home/me,ODD=005,"]
        lines[-1] += "PBS_O_PATH=/usr/local/bin:/usr/bin:/bin,PBS_O_WORKDIR=/home/me,PBS_O_QUEUE=workq"
        if job["state"] == "queued":
            lines.append("comment = Not Running: Insufficient amount of resource: ncpus")
        if job["state"] == "ended":
            lines.append(f"Exit_status = {job['code'] if job['how'] != 'out of time' else -29}")
        print(f"Job Id: {id_}")
        for line in lines:
            print("\n\t".join(re.findall(".{1,74}", f"    {line}")))
        print()
    for id_ in unknown:
        print(f"qstat: Unknown Job Id {id_}", file=sys.stderr)
    sys.exit(153 if unknown else 0)


def refuse_json(words: list[str]) -> None:
    """The JSON of OpenPBS is no JSON where a variable is 005, and of several jobs it has the first only."""
    if "-F" in words:
        print('{"timestamp": 1, "Jobs": {"101.pbs": {"Job_Name": "j", "Variable_List": {"ODD":005}}}}')
        sys.exit(0)


def qdel(cluster: Cluster, words: list[str], *, at_once: bool = False) -> None:
    for number in (int(it.partition(".")[0]) for it in words if it.endswith(".pbs")):
        if cluster.jobs[number]["state"] != "ended":
            cluster.end(number, "deleted", at_once=at_once)


def bsub(cluster: Cluster, words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bsub", add_help=False, allow_abbrev=False)
    parser.add_argument("-J", dest="name")
    parser.add_argument("-R", action="append")
    parser.add_argument("-rn", action="store_true")
    for option in ("-cwd", "-o", "-env", "-n", "-gpu", "-W", "-q", "-P", "-app"):
        parser.add_argument(option)
    arguments = parser.parse_args(words)
    if arguments.q == "nosuch":
        refuse("", "nosuch: No such queue. Job not submitted.", 255)
    minutes = sum(int(part) * unit for part, unit in zip((arguments.W or "0:0").split(":"), (60, 1), strict=True))
    # Minutes are seconds here.
    number = submit("", cluster, arguments, sys.stdin.read(), environment={"LSB_JOBID": "7"}, limit_s=float(minutes))
    print(f"Job <{number}> is submitted to queue <normal>.")


def bjobs(cluster: Cluster, words: list[str]) -> None:
    if not cluster.jobs:
        refuse("", "No job found", 255)
    records = []
    for number, job in cluster.jobs.items():
        how = {"": "", "out of time": "TERM_RUNLIMIT: job killed after reaching LSF run time limit"}
        stat = {"queued": "PEND", "running": "RUN", "ended": "EXIT" if job["how"] or job.get("code") else "DONE"}
        records.append(
            {
                "JOBID": str(number),
                "STAT": stat[job["state"]],
                "EXIT_REASON": how.get(job["how"], "TERM_OWNER: job killed by owner"),
                "PEND_REASON": "Job slot limit reached;" if job["state"] == "queued" else "",
                "JOB_NAME": job["name"],
            }
        )
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}))


def bkill(cluster: Cluster, words: list[str]) -> None:
    for number in (int(it) for it in words if it.isdecimal()):
        if cluster.jobs[number]["state"] == "ended":
            refuse("", f"Job <{number}>: Job has already finished", 255)
        cluster.end(number, "killed", at_once="KILL" in words)


def flux(cluster: Cluster, words: list[str]) -> None:
    what, *rest = words
    {"submit": flux_submit, "batch": flux_submit, "jobs": flux_jobs, "cancel": flux_cancel}[what](cluster, rest)


def flux_submit(cluster: Cluster, words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="flux submit", add_help=False, allow_abbrev=False)
    parser.add_argument("--job-name", dest="name")
    for option in ("--cwd", "--output", "--env", "--nodes", "--time-limit", "--queue", "--bank", "--setattr"):
        parser.add_argument(option)
    for option in ("-n", "-c", "-g"):
        parser.add_argument(option, type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(words)
    if arguments.queue == "nosuch":
        refuse("flux-submit", "ERROR: Invalid queue 'nosuch' specified")
    script = arguments.command[2] if arguments.command else sys.stdin.read()
    limit_s = float((arguments.time_limit or "0s").removesuffix("s"))
    environment = {"FLUX_JOB_ID": "7"}
    number = submit("flux-submit", cluster, arguments, script, environment=environment, limit_s=limit_s)
    print(f"f{number}")


def flux_jobs(cluster: Cluster, words: list[str]) -> None:
    layout = words[words.index("-o") + 1]
    for number, job in cluster.jobs.items() if "-a" in words else ():
        code = job.get("code")
        result = {"": "FAILED" if code else "COMPLETED", "out of time": "TIMEOUT"}.get(job["how"], "CANCELED")
        values = {
            "{id}": f"f{number}",
            "{state}": {"queued": "SCHED", "running": "RUN", "ended": "INACTIVE"}[job["state"]],
            "{result}": result if job["state"] == "ended" else "",
            "{name}": job["name"],
            "{annotations.sched.reason_pending}": "resources" if job["state"] == "queued" else "",
            "{exception.note}": "resource allocation expired" if job["how"] == "out of time" else "",
        }
        print("|".join(values[field] for field in layout.split("|")))


def flux_cancel(cluster: Cluster, words: list[str]) -> None:
    for number in (int(it[1:]) for it in words):
        if cluster.jobs[number]["state"] == "ended":
            refuse("flux-cancel", f"f{number}: job is inactive")
        cluster.end(number, "canceled")


def oarsub(cluster: Cluster, words: list[str]) -> None:
    """As OAR 2.5.9 answers, with the words of its rules of admission before the number."""
    parser = argparse.ArgumentParser(prog="oarsub", add_help=False, allow_abbrev=False)
    parser.add_argument("-n", dest="name")
    for option in ("-d", "-O", "-E", "-l", "-q", "--project"):
        parser.add_argument(option)
    parser.add_argument("script")
    arguments = parser.parse_args(words)
    print("[ADMISSION RULE] Modify resource description with type constraints")
    if arguments.q == "nosuch":
        refuse("", "ERROR : The queue nosuch does not exist", 248)
    h, m, s = map(int, (arguments.l.partition("walltime=")[2] or "0:0:0").split(":"))
    # A signal comes to what the user's shell becomes.
    script = f"exec {arguments.script}"
    limit_s = 3600 * h + 60 * m + s
    number = submit("", cluster, arguments, script, environment={"OAR_JOB_ID": "7"}, limit_s=limit_s)
    print(f"OAR_JOB_ID={number}")


def oarstat(cluster: Cluster, words: list[str]) -> None:
    """As OAR 2.5.9 prints jobs, without what nobody reads; without jobs it prints nothing."""
    told = {}
    for number, job in cluster.jobs.items():
        events = {"deleted": "User me requested to frag the job", "out of time": "The job walltime is over"}
        types = {"deleted": "FRAG_JOB_REQUEST", "out of time": "WALLTIME"}
        how = job["how"]
        told[str(number)] = {
            "Job_Id": number,
            "name": job["name"],
            "owner": "me",
            "state": {"queued": "Waiting", "running": "Running", "ended": "Error" if how else "Terminated"}[
                job["state"]
            ],
            "message": "No enough matching resources (no_matching_slot)" if job["state"] == "queued" else "R=1",
            "exit_code": job["code"] << 8 if job["state"] == "ended" else None,
            "walltime": int(job["limit_s"]) or 7200,
            "events": [{"type": types[how], "description": events[how]}] if how else [],
        }
    if told and "-J" in words:
        print(json.dumps(told))


def oardel(cluster: Cluster, words: list[str]) -> None:
    """Kill at once, or send a signal to the first process of a job, which has to pass it on."""
    for number in (int(it) for it in words if it.isdecimal()):
        job = cluster.jobs[number]
        if job["state"] == "ended":
            refuse("", f"Cannot frag {number} ; This job was already killed.", 6)
        if "-s" not in words:
            cluster.end(number, "deleted", at_once=True)
        elif job["state"] == "queued":
            refuse("", f"Cannot signal {number} ; This job is not running.", 5)
        else:
            for pid, (_, parent, *_) in _processes():
                if int(parent) == job["pid"]:
                    os.kill(pid, signal.SIGTERM)


if __name__ == "__main__":
    _, command, *rest = sys.argv
    place = Path(os.environ["FAKE_CLUSTER"])
    # One command at a time; what a job inherits must not hold the others up.
    lock = os.open(place / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    cluster = Cluster(place)
    if command == "qsig":
        qdel(cluster, rest, at_once=True)
    else:
        globals()[command](cluster, rest)
