# SPDX-License-Identifier: Apache-2.0
#
# Python's DataLoader as a peer of bench_data, which starts this script. Each line "<case> <rows>"
# is answered with the seconds of one epoch and the CPU seconds of all processes in it.

import os
import sys
import time

try:
    import torch
    from torch.utils.data import DataLoader, Dataset
except ImportError:
    sys.exit(0)

COLUMNS = 100
BATCH = 256


class Gathered(Dataset):
    """Fetches all rows of a batch in one call, the fastest way in Python."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, indices):
        return self.records[indices]


class Mapped(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index] * 2 + 1


def make_loader(case, rows):
    records = (torch.arange(rows) % 1009).float().repeat_interleave(COLUMNS).reshape(rows, COLUMNS)
    if case == "shuffled":
        sampler = torch.utils.data.BatchSampler(
            torch.utils.data.RandomSampler(records), batch_size=BATCH, drop_last=False)
        return DataLoader(Gathered(records), sampler=sampler, batch_size=None)
    workers = 2 if case == "per_record_2" else 0
    return DataLoader(Mapped(records), batch_size=BATCH, num_workers=workers,
                      persistent_workers=workers > 0)


def cpu_seconds(loader):
    ticks = 0
    for worker in getattr(loader._iterator, "_workers", []):
        with open(f"/proc/{worker.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main():
    loaders = {}
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        if line not in loaders:
            loaders = {line: make_loader(line.split()[0], int(line.split()[1]))}
            for _ in loaders[line]:
                pass
        loader = loaders[line]
        begin, cpu = time.monotonic(), cpu_seconds(loader)
        for _ in loader:
            pass
        print(time.monotonic() - begin, cpu_seconds(loader) - cpu, flush=True)


if __name__ == "__main__":
    main()
