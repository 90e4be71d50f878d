#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""slurm_cluster.py <cluster_program> [command...]: a real Slurm of three nodes on this machine.

Starts munged, slurmctld and three slurmd under a scratch folder, runs cluster_program in several job
steps and checks the cluster that each of its tasks resolved. With a command, runs that instead, with
the environment in which srun finds the cluster. Needs root; `make slurm` installs the packages.
With --probe, only says in one sentence whether it can run here.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NODES = ["node8", "node9", "node10"]  # string order would be node10, node8, node9
START_LIMIT = 60
STEP_LIMIT = 60
NEEDED = ["munged", "slurmctld", "slurmd", "srun", "sinfo"]

CONFIG = """\
ClusterName=tutti
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
ReturnToService=2
SwitchType=switch/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
KillWait=2
SlurmdParameters=config_overrides
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Slurm:
    """The daemons, as children of this process, which ends them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.children: list[tuple[str, subprocess.Popen]] = []
        self.environment = dict(os.environ) | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        controller, *ports = free_ports(1 + len(NODES))
        lines = [CONFIG.format(host=socket.gethostname().split(".")[0], controller_port=controller,
                               folder=self.folder)]
        for name, port in zip(NODES, ports):
            # Four CPUs each, whatever this machine has: config_overrides lets Slurm believe it.
            lines.append(f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN\n")
        lines.append(f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n")
        (self.folder / "slurm.conf").write_text("".join(lines), encoding="utf-8")
        (self.folder / "state").mkdir()
        for name in NODES:
            (self.folder / f"spool.{name}").mkdir()
        self._start_munge()
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for name in NODES:
            self._start(f"slurmd of {name}", "slurmd", "-D", "-N", name)
        self._wait_for_nodes()

    def _start(self, what: str, *command: str) -> None:
        with open(self.folder / f"{len(self.children)}.out", "wb") as out:
            self.children.append((what, subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)))

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        # --force: the scratch folder lies under /tmp, which is world-writable.
        self._start("munged", "munged", "--foreground", "--force", f"--key-file={key}",
                    f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid",
                    f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed")
        self._wait("munged", lambda: (self.folder / "munge.socket").exists())

    def _wait_for_nodes(self) -> None:
        def idle() -> bool:
            found = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%N %t"], env=self.environment,
                                   capture_output=True, text=True, timeout=START_LIMIT, check=False)
            return sorted(found.stdout.split("\n")[:-1]) == sorted(f"{name} idle" for name in NODES)
        self._wait("the three nodes", idle)

    def _wait(self, what: str, ready) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not ready():
            for name, child in self.children:
                if child.poll() is not None:
                    self.fail(f"{name} ended with status {child.returncode}")
            if time.monotonic() > deadline:
                self.fail(f"{what} did not start within {START_LIMIT} s")
            time.sleep(0.1)

    def fail(self, why: str) -> None:
        for log in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")
        sys.exit(f"slurm: {why}.")

    def stop(self) -> None:
        for _, child in reversed(self.children):
            if child.poll() is None:
                child.terminate()
        for _, child in reversed(self.children):
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def run(self, *command: str, status: int = 0, **variables: str) -> list[str]:
        """The lines that `srun <command>` prints."""
        done = subprocess.run(["srun", *command], env=self.environment | variables, capture_output=True,
                              text=True, timeout=STEP_LIMIT, stdin=subprocess.DEVNULL, check=False)
        if (done.returncode == 0) != (status == 0):
            self.fail(f"srun {' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        return (done.stdout if status == 0 else done.stderr).splitlines()


def resolve(slurm: Slurm, program: str, *options: str, **variables: str) -> list[dict]:
    """What the tasks of a step resolved, by rank."""
    tasks = [json.loads(line) for line in slurm.run(*options, program, **variables)]
    return sorted(tasks, key=lambda task: task["rank"])


def check(what: str, found, expected) -> None:
    if found != expected:
        sys.exit(f"slurm: {what}:\n  found    {found}\n  expected {expected}")
    print(f"slurm: {what}: ok", flush=True)


def check_steps(slurm: Slurm, program: str) -> None:
    tasks = resolve(slurm, program, "-N3", "-n3")
    workers = [f"{name}:8888" for name in NODES]
    check("three tasks on three nodes", tasks, [
        {"rank": rank, "task": f"worker {rank}", "node": NODES[rank], "cluster": {"worker": workers},
         "banner": f"3 workers x 1 replica, I am worker {rank} ({workers[rank]}), from Slurm"}
        for rank in range(3)])

    # Whatever the distribution, the address of a task is on the node on which it runs.
    for name, *options in (("block", "-m", "block"), ("cyclic", "-m", "cyclic"),
                           ("plane", "-m", "plane=2"), ("subset", "-w", "node9,node10", "-N2")):
        tasks = resolve(slurm, program, *([] if name == "subset" else ["-N3"]), "-n7", *options)
        check(f"{name}: all tasks see the same cluster", {json.dumps(task["cluster"]) for task in tasks},
              {json.dumps(tasks[0]["cluster"])})
        addresses = tasks[0]["cluster"]["worker"]
        check(f"{name}: tasks are where their addresses are",
              [address.split(":")[0] for address in addresses], [task["node"] for task in tasks])
        check(f"{name}: no address is used twice", len(set(addresses)), 7)

    tasks = resolve(slurm, program, "-n3", "--mpi=pmi2")
    check("srun --mpi=pmi2 gives the same cluster", tasks[0]["cluster"],
          {"worker": ["node8:8888", "node8:8889", "node8:8890"]})

    errors = slurm.run("-N2", "-n4", "-m", "arbitrary", "-w", "node8,node9,node9,node8", program, status=1)
    check("an arbitrary distribution is refused",
          any('SLURM_DISTRIBUTION="arbitrary" is set' in line for line in errors), True)


def main() -> int:
    if sys.argv[1:2] == ["--probe"]:
        if os.geteuid() != 0:
            sys.exit("slurm: cannot run: only root can start the daemons of Slurm.")
        lacking = [name for name in NEEDED if shutil.which(name) is None]
        if lacking:
            sys.exit(f"slurm: cannot run: {', '.join(lacking)} cannot be found.")
        return 0
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(tempfile.mkdtemp(prefix="tutti_slurm_"))
    folder.chmod(0o755)
    slurm = Slurm(folder)
    try:
        begin = time.monotonic()
        slurm.start()
        print(f"slurm: three nodes are up after {time.monotonic() - begin:.1f} s.", flush=True)
        if sys.argv[2:]:
            return subprocess.run(sys.argv[2:], env=slurm.environment, check=False).returncode
        check_steps(slurm, sys.argv[1])
        print(f"slurm: done after {time.monotonic() - begin:.1f} s.")
        return 0
    finally:
        slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
