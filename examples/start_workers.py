#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""start_workers.py <number of workers> <program> [arguments]: a cluster on this machine.

Starts the program once for each worker, with TF_CONFIG set as a cluster manager would set it.
Lines that workers print are prefixed with their number, except those of worker 0. When a worker
fails, the others detect it through the library and exit; those that do not within ten seconds are
killed. Ctrl-C and SIGTERM end all workers. The exit status is that of the first worker that failed.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def forward(stream, out, prefix: str) -> None:
    for line in stream:
        out.write(prefix + line)
        out.flush()


def main() -> int:
    if len(sys.argv) < 3 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 1:
        print(__doc__)
        return 2
    workers, command = int(sys.argv[1]), sys.argv[2:]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes, threads, asked = [], [], []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: asked.append(number))
    for index in range(workers):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        try:
            process = subprocess.Popen(
                command,
                env=os.environ | {"TF_CONFIG": json.dumps(config)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:  # the first one fails, or none
            print(f"start_workers.py: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
            return 127
        prefix = "" if index == 0 else f"[worker {index}] "
        for stream, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if index != 0 and out is sys.stdout:
                out = sys.stderr
            threads.append(threading.Thread(target=forward, args=(stream, out, prefix)))
            threads[-1].start()
        processes.append(process)
    status, end = 0, None
    while None in [process.poll() for process in processes]:
        failed = [process.returncode for process in processes if process.returncode]
        if asked and end is None:
            for process in processes:
                process.terminate()
            status, end = -asked[0], time.monotonic() + 10
        if failed and end is None:
            status, end = failed[0], time.monotonic() + 10
        if end is not None and time.monotonic() > end:
            for process in processes:
                process.kill()
        time.sleep(0.05)
    status = status or next((each.returncode for each in processes if each.returncode), 0)
    for thread in threads:
        thread.join()
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main())
