#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""workers.py equality|failures|namespaces <worker_program>: real processes, real kills, real networks.

equality:   the SHA-256 of a trained model is the same for every way to host the same replicas.
failures:   what the other workers say when one dies, throws or leaves.
namespaces: the same over hosts in network namespaces, which share no memory; needs root.
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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples"))
from start_workers import free_ports  # noqa: E402

PROGRAM = sys.argv[2] if len(sys.argv) > 2 else ""


def start(folder, workers, replicas, kind, extra=(), hosts=None, env=None, env_of_last=None):
    """Starts the workers; hosts are (namespace, address) pairs."""
    if hosts:
        addresses = [f"{address}:{4321 + i}" for i, (_, address) in enumerate(hosts)]
    else:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes = []
    for index in range(workers):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        out = os.path.join(folder, f"{kind}-{workers}x{replicas}-{index}")
        command = [PROGRAM, out, str(replicas), kind, *extra]
        if hosts:
            command = ["ip", "netns", "exec", hosts[index][0], *command]
        log = open(out + ".log", "w+", encoding="utf-8")
        process = subprocess.Popen(
            command,
            env=os.environ | {"TF_CONFIG": json.dumps(config)} | (env or {})
            | ((index == workers - 1 and env_of_last) or {}),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        processes.append((process, out, log))
    return processes


def finish(processes, timeout=120):
    """The last line and the exit status of each worker; one that hangs is a failure."""
    results = []
    end = time.monotonic() + timeout
    for process, out, log in processes:
        try:
            text, _ = process.communicate(timeout=max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            for other, _, _ in processes:
                other.kill()
            raise SystemExit(f"{out}: hangs") from None
        log.seek(0)
        results.append((text.strip(), process.returncode, log.read()))
    return results


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def train(folder, workers, replicas, kind, hosts=None, env=None):
    """The common SHA-256 of all workers."""
    processes = start(folder, workers, replicas, kind, hosts=hosts, env=env)
    for text, status, log in finish(processes):
        if status != 0 or text != "ok":
            raise SystemExit(f"{kind} {workers}x{replicas}: {text}\n{log}")
    digests = {digest(out) for _, out, _ in processes}
    if len(digests) != 1:
        raise SystemExit(f"{kind} {workers}x{replicas}: the workers differ: {digests}")
    return digests.pop()


def check_equal(name, expected, found):
    print(f"{name}: {found[:16]}", flush=True)
    if found != expected:
        raise SystemExit(f"{name}: {found} is not {expected}")


def equality(folder):
    groups = {2: [(2, 1), (1, 2)], 4: [(4, 1), (2, 2), (1, 4)], 6: [(3, 2), (2, 3)]}
    for total, ways in groups.items():
        expected = train(folder, 1, total, "mirrored")
        print(f"mirrored x{total}: {expected[:16]}", flush=True)
        for workers, replicas in ways:
            for kind in ("host", "grpc"):
                found = train(folder, workers, replicas, kind)
                check_equal(f"{kind} {workers}x{replicas}", expected, found)
    default_threads(folder)


def default_threads(folder):
    """Workers that may choose divide the cores, and so have the bits of one process."""
    automatic = {"WORKER_THREADS": "0"}
    for kind in ("host", "grpc"):
        check_equal(f"{kind} 2x1, automatic threads", train(folder, 1, 2, "mirrored", env=automatic),
                    train(folder, 2, 1, kind, env=automatic))
        for index in range(2):
            log = open(os.path.join(folder, f"{kind}-2x1-{index}.log"), encoding="utf-8").read()
            found = re.search(r"has (\d+) threads? per replica \(2 workers share (\d+) cores?\)", log)
            if not found or int(found[1]) != max(1, int(found[2]) // 2):
                raise SystemExit(f"{kind}: worker {index} does not share the cores:\n{log}")
    # One that sets the number and one that does not would compute other bits.
    processes = start(folder, 2, 1, "auto", env=automatic, env_of_last={"WORKER_THREADS": "1"})
    for text, status, log in finish(processes):
        if status == 0 or "threads per replica is" not in text or '"automatic"' not in text:
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
            results = finish(start(folder, 3, 1, kind, extra=(end, "20")))
            took = time.monotonic() - began
            for index in (0, 2):
                text, status, log = results[index]
                parts = ["127.0.0.1:", " step 21"]
                if end != "throw":
                    parts += ["Detected by /job:worker/task:", " during all_"]
                if status == 0 or not text.startswith(expected) or not all(p in text for p in parts):
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
    processes = start(folder, 2, 1, "auto")
    processes[1][0].kill()
    processes[1][0].communicate()
    config = json.loads(open(f"/proc/{processes[0][0].pid}/environ", "rb").read().split(b"TF_CONFIG=")[1]
                        .split(b"\0")[0])
    config["task"]["index"] = 1
    other = subprocess.run([PROGRAM, os.path.join(folder, "other"), "2", "auto"], check=False,
                           env=os.environ | {"TF_CONFIG": json.dumps(config)},
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=90)
    text, _ = processes[0][0].communicate(timeout=90)
    for each in (other.stdout.strip(), text.strip()):
        if not each.startswith("kFailedPrecondition") or "replicas per worker" not in each:
            raise SystemExit(f"other replica counts: {each!r}")
    print(f"other replica counts: {text.strip()[:150]}", flush=True)


def run(*command):
    subprocess.run(command, check=True)


def late_name(folder, hosts, secret):
    """As torchrun starts workers: only the name of the first is known, and not immediately."""
    files = []
    for name, _ in hosts:
        os.makedirs(f"/etc/netns/{name}", exist_ok=True)  # `ip netns exec` shows it as /etc/hosts
        files.append(open(f"/etc/netns/{name}/hosts", "w", encoding="utf-8"))
        print("127.0.0.1 localhost", file=files[-1], flush=True)
    processes = []
    for rank, (name, _) in enumerate(hosts):
        out = os.path.join(folder, f"late-{rank}")
        env = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"} | secret
        env |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "chief.tutti.test", "MASTER_PORT": "4400"}
        log = open(out + ".log", "w+", encoding="utf-8")
        process = subprocess.Popen(["ip", "netns", "exec", name, PROGRAM, out, "1", "auto"], env=env,
                                   stdout=subprocess.PIPE, stderr=log, text=True)
        processes.append((process, out, log))
    deadline = time.monotonic() + 30
    while not all("waiting until the name of" in open(out + ".log", encoding="utf-8").read()
                  for _, out, _ in processes):
        if time.monotonic() > deadline or any(each.poll() is not None for each, _, _ in processes):
            raise SystemExit(f"nobody waits for the name: {finish(processes, 5)}")
        time.sleep(0.1)
    for file in files:
        print(f"{hosts[0][1]} chief.tutti.test", file=file, flush=True)
    for text, status, log in finish(processes):
        if status != 0 or text != "ok":
            raise SystemExit(f"late name: {text}\n{log}")
    for _, out, _ in processes:
        check_equal("late name", train(folder, 1, 2, "mirrored"), digest(out))


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
        check_equal("3 hosts x 2", train(folder, 1, 6, "mirrored"),
                    train(folder, 3, 2, "auto", hosts=hosts, env=secret))
        def expect_ways(*ways):
            log = open(os.path.join(folder, "auto-3x2-0.log"), encoding="utf-8").read()
            if not all(way in log for way in ways):
                raise SystemExit(f"worker 0 is not connected by {ways}:\n{log}")

        expect_ways("by grpc")
        # Workers 0 and 1 share a host, worker 2 is elsewhere.
        check_equal("2 + 1 on 2 hosts, x 2", train(folder, 1, 6, "mirrored"),
                    train(folder, 3, 2, "auto", hosts=[hosts[0], hosts[0], hosts[1]], env=secret))
        expect_ways("shared memory for ranks 1", "grpc for ranks 2")
        late_name(folder, hosts[:2], secret)
        certificates = os.path.join(folder, "certificates")
        run(os.path.join(os.path.dirname(PROGRAM), "tutti-certs"), "--out", certificates,
            "--hosts", "all+" + "+".join(address for _, address in hosts))
        check_equal("2 hosts with certificates, no secret", train(folder, 1, 2, "mirrored"),
                    train(folder, 2, 1, "auto", hosts=hosts[:2],
                          env={"WORKER_CERTIFICATES": certificates}))
        results = finish(start(folder, 2, 1, "auto", hosts=hosts[:2]), timeout=30)
        if any(status == 0 or "TUTTI_JOB_SECRET" not in text for text, status, _ in results):
            raise SystemExit(f"without a secret: {results}")
        print(f"without a secret: {results[0][0][:150]}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, stderr=subprocess.DEVNULL)


def main():
    with tempfile.TemporaryDirectory() as folder:
        {"equality": equality, "failures": failures, "namespaces": namespaces}[sys.argv[1]](folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
