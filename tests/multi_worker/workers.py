#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""workers.py equality|failures|namespaces <worker_program> <tutti>: real processes, kills, networks.

equality:   the SHA-256 of a trained model is the same for every way to host the same replicas.
failures:   what the other workers say when one dies, throws or leaves.
namespaces: the same over hosts in network namespaces, which share no memory; needs root.

`tutti run` starts this script again for each worker, which replaces itself with its own command:
workers.py --as-worker <commands and environments of all workers>.
"""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAM, TUTTI = (sys.argv[2:] + ["", ""])[:2]


def become_worker(plans):
    """Executes the command of this worker. A variable that is null is removed."""
    plan = plans[json.loads(os.environ["TF_CONFIG"])["task"]["index"]]
    environment = os.environ | plan["environment"]
    environment = {name: value for name, value in environment.items() if value is not None}
    os.execvpe(plan["command"][0], plan["command"], environment)


class Job:
    """Workers under `tutti run`, each with a command and an environment of its own."""

    def __init__(self, folder, plans, timeout=120):
        self.files = [open(os.path.join(folder, name), "w+", encoding="utf-8") for name in ("output", "errors")]
        self.plans = plans
        command = [TUTTI, "run", "--workers", str(len(plans)), "--keep-going", "--timeout", str(timeout),
                   sys.executable, os.path.abspath(__file__), "--as-worker", json.dumps(plans)]
        self.process = subprocess.Popen(command, stdout=self.files[0], stderr=self.files[1])

    def lines(self, file):
        """What each worker has printed so far."""
        file.seek(0)
        found = re.findall(r"^\[worker (\d+)\] (.*\n)", file.read(), re.MULTILINE)
        return ["".join(line for worker, line in found if int(worker) == index)
                for index in range(len(self.plans))]

    def logs(self):
        return self.lines(self.files[1])

    def finish(self):
        """The output, whether it failed, and the log of each worker."""
        status = self.process.wait()
        self.files[1].seek(0)
        own = "".join(line for line in self.files[1] if line.startswith("tutti run: "))
        if status == 124:
            raise SystemExit(f"a worker hangs:\n{own}{''.join(self.logs())}")
        failed = [f"tutti run: worker {index} (" in own for index in range(len(self.plans))]
        if any(failed) != (status != 0):
            raise SystemExit(f"tutti run returned {status}, but wrote:\n{own}")
        outputs = [text.strip() for text in self.lines(self.files[0])]
        return list(zip(outputs, failed, self.logs()))


def out_of(folder, workers, replicas, kind, index):
    return os.path.join(folder, f"{kind}-{workers}x{replicas}-{index}")


def start(folder, workers, replicas, kind, extra=(), hosts=None, env=None, env_of_last=None, timeout=120):
    """Starts the workers; hosts are (namespace, address) pairs."""
    plans = []
    for index in range(workers):
        command = [PROGRAM, out_of(folder, workers, replicas, kind, index), str(replicas), kind, *extra]
        environment = dict(env or {}) | ((index == workers - 1 and env_of_last) or {})
        if hosts:
            command = ["ip", "netns", "exec", hosts[index][0], *command]
            addresses = [f"{address}:{4321 + i}" for i, (_, address) in enumerate(hosts)]
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment["TF_CONFIG"] = json.dumps(config)
        plans.append({"command": command, "environment": environment})
    return Job(folder, plans, timeout)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def train(folder, workers, replicas, kind, hosts=None, env=None):
    """The common SHA-256 of all workers, and their logs."""
    results = start(folder, workers, replicas, kind, hosts=hosts, env=env).finish()
    for text, failed, log in results:
        if failed or text != "ok":
            raise SystemExit(f"{kind} {workers}x{replicas}: {text}\n{log}")
    digests = {digest(out_of(folder, workers, replicas, kind, index)) for index in range(workers)}
    if len(digests) != 1:
        raise SystemExit(f"{kind} {workers}x{replicas}: the workers differ: {digests}")
    return digests.pop(), [log for _, _, log in results]


def check_equal(name, expected, found):
    """Compares what two calls of train() return. Returns the logs of the second."""
    print(f"{name}: {found[0][:16]}", flush=True)
    if found[0] != expected[0]:
        raise SystemExit(f"{name}: {found[0]} is not {expected[0]}")
    return found[1]


def equality(folder):
    groups = {2: [(2, 1), (1, 2)], 4: [(4, 1), (2, 2), (1, 4)], 6: [(3, 2), (2, 3)]}
    for total, ways in groups.items():
        expected = train(folder, 1, total, "mirrored")
        print(f"mirrored x{total}: {expected[0][:16]}", flush=True)
        for workers, replicas in ways:
            for kind in ("host", "grpc"):
                found = train(folder, workers, replicas, kind)
                check_equal(f"{kind} {workers}x{replicas}", expected, found)
    default_threads(folder)


def default_threads(folder):
    """Workers that may choose divide the cores, and so have the bits of one process."""
    automatic = {"WORKER_THREADS": "0"}
    for kind in ("host", "grpc"):
        logs = check_equal(f"{kind} 2x1, automatic threads", train(folder, 1, 2, "mirrored", env=automatic),
                           train(folder, 2, 1, kind, env=automatic))
        for index, log in enumerate(logs):
            found = re.search(r"has (\d+) threads? per replica \(2 workers share (\d+) cores?\)", log)
            if not found or int(found[1]) != max(1, int(found[2]) // 2):
                raise SystemExit(f"{kind}: worker {index} does not share the cores:\n{log}")
    # One that sets the number and one that does not would compute other bits.
    job = start(folder, 2, 1, "auto", env=automatic, env_of_last={"WORKER_THREADS": "1"})
    for text, failed, log in job.finish():
        if not failed or "threads per replica is" not in text or '"automatic"' not in text:
            raise SystemExit(f"automatic and given threads: {text}\n{log}")


def failures(folder):
    cases = {
        "die": ("kUnavailable: /job:worker/task:1 (", 15),
        "leave": ("kUnavailable: /job:worker/task:1 (", 15),
        "throw": ("kCancelled: /job:worker/task:1 (", 15),
    }
    for kind in ("host", "grpc"):
        for end, (expected, limit) in cases.items():
            began = time.monotonic()
            results = start(folder, 3, 1, kind, extra=(end, "20")).finish()
            took = time.monotonic() - began
            for index in (0, 2):
                text, failed, log = results[index]
                parts = ["127.0.0.1:", " step 21"]
                if end != "throw":
                    parts += ["Detected by /job:worker/task:", " during all_"]
                if not failed or not text.startswith(expected) or not all(p in text for p in parts):
                    raise SystemExit(f"{kind} {end}: worker {index} says {text!r}\n{log}")
                if end == "throw" and not ("the disk is on fire" in text and "step 21" in text
                                           and "replica 1" in text):
                    raise SystemExit(f"{kind} {end}: worker {index} says {text!r}")
            if end == "throw" and results[1][0] != "std::exception: the disk is on fire":
                raise SystemExit(f"{kind} {end}: worker 1 says {results[1][0]!r}")
            if took > limit:
                raise SystemExit(f"{kind} {end}: took {took:.1f} s")
            print(f"{kind} {end}: {results[0][0][:150]}", flush=True)
    # Workers that do not fit together.
    plans = [{"command": [PROGRAM, os.path.join(folder, replicas), replicas, "auto"], "environment": {}}
             for replicas in ("1", "2")]
    results = Job(folder, plans).finish()
    for text, failed, log in results:
        if not failed or not text.startswith("kFailedPrecondition") or "replicas per worker" not in text:
            raise SystemExit(f"other replica counts: {text!r}\n{log}")
    print(f"other replica counts: {results[0][0][:150]}", flush=True)


def run(*command):
    subprocess.run(command, check=True)


def late_name(folder, hosts, secret):
    """As torchrun starts workers: only the name of the first is known, and not immediately."""
    files = []
    for name, _ in hosts:
        os.makedirs(f"/etc/netns/{name}", exist_ok=True)  # `ip netns exec` shows it as /etc/hosts
        files.append(open(f"/etc/netns/{name}/hosts", "w", encoding="utf-8"))
        print("127.0.0.1 localhost", file=files[-1], flush=True)
    plans = []
    for rank, (name, _) in enumerate(hosts):
        environment = secret | {
            "TF_CONFIG": None, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "chief.tutti.test", "MASTER_PORT": "4400"}
        command = ["ip", "netns", "exec", name, PROGRAM, os.path.join(folder, f"late-{rank}"), "1", "auto"]
        plans.append({"command": command, "environment": environment})
    job = Job(folder, plans)
    deadline = time.monotonic() + 30
    while not all("waiting until the name of" in log for log in job.logs()):
        if time.monotonic() > deadline or job.process.poll() is not None:
            job.process.terminate()
            raise SystemExit(f"nobody waits for the name: {job.finish()}")
        time.sleep(0.1)
    for file in files:
        print(f"{hosts[0][1]} chief.tutti.test", file=file, flush=True)
    for text, failed, log in job.finish():
        if failed or text != "ok":
            raise SystemExit(f"late name: {text}\n{log}")
    expected = train(folder, 1, 2, "mirrored")
    for rank in range(2):
        check_equal("late name", expected, (digest(os.path.join(folder, f"late-{rank}")), []))


def namespaces(folder):
    if os.geteuid() != 0:
        print("skipped: network namespaces need root")
        sys.exit(77)
    names = [f"tutti{os.getpid()}{i}" for i in range(3)]
    bridge = f"tb{os.getpid() % 100000}"
    try:
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "link", "set", bridge, "up")
        for i, name in enumerate(names):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"{bridge}v{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"{bridge}v{i}", "master", bridge)
            run("ip", "link", "set", f"{bridge}v{i}", "up")
            run("ip", "-n", name, "addr", "add", f"10.123.7.{i + 1}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
        hosts = [(name, f"10.123.7.{i + 1}") for i, name in enumerate(names)]
        secret = {"TUTTI_JOB_SECRET": "a secret of the tests"}
        check_equal("2 hosts x 1", train(folder, 1, 2, "mirrored"),
                    train(folder, 2, 1, "auto", hosts=hosts[:2], env=secret))
        def expect_ways(logs, *ways):
            if not all(way in logs[0] for way in ways):
                raise SystemExit(f"worker 0 is not connected by {ways}:\n{logs[0]}")

        expected = train(folder, 1, 6, "mirrored")
        expect_ways(check_equal("3 hosts x 2", expected,
                                train(folder, 3, 2, "auto", hosts=hosts, env=secret)), "by grpc")
        # Workers 0 and 1 share a host, worker 2 is elsewhere.
        shared = [hosts[0], hosts[0], hosts[1]]
        expect_ways(check_equal("2 + 1 on 2 hosts, x 2", expected,
                                train(folder, 3, 2, "auto", hosts=shared, env=secret)),
                    "shared memory for ranks 1", "grpc for ranks 2")
        late_name(folder, hosts[:2], secret)
        certificates = os.path.join(folder, "certificates")
        run(os.path.join(os.path.dirname(PROGRAM), "tutti-certs"), "--out", certificates,
            "--hosts", "all+" + "+".join(address for _, address in hosts))
        check_equal("2 hosts with certificates, no secret", train(folder, 1, 2, "mirrored"),
                    train(folder, 2, 1, "auto", hosts=hosts[:2],
                          env={"WORKER_CERTIFICATES": certificates}))
        results = start(folder, 2, 1, "auto", hosts=hosts[:2], timeout=30).finish()
        if any(not failed or "TUTTI_JOB_SECRET" not in text for text, failed, _ in results):
            raise SystemExit(f"without a secret: {results}")
        print(f"without a secret: {results[0][0][:150]}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, stderr=subprocess.DEVNULL)


def main():
    if sys.argv[1] == "--as-worker":
        become_worker(json.loads(sys.argv[2]))
    with tempfile.TemporaryDirectory() as folder:
        {"equality": equality, "failures": failures, "namespaces": namespaces}[sys.argv[1]](folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
