# SPDX-License-Identifier: Apache-2.0
#
# Python's DistributedDataParallel on Gloo, 2 processes of one thread each, as a peer of
# bench_training, which starts this script. It reads lines from its standard input:
#   <case> <steps>        answered with the seconds of this many steps and the CPU seconds of both
#                         processes; warm-up steps precede them and do not count
#   check <case> <steps>  answered with the number of parameters and, from fresh parameters, the
#                         loss of the first step and of the last
# A case that ends in _plain is the same without DistributedDataParallel. Models, first values and
# batches are those of training_bench.cc.

import os
import sys
import time
from datetime import timedelta

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    sys.exit(0)

RANKS = 2
RATE = 0.01


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1))

    def forward(self, x):
        return x * self.weight


def layers(*sizes):
    parts = []
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        parts += [nn.ReLU()] * (i > 0) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*parts)


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10))


# case: model, shape of a replica's batch, classes
CASES = {
    "one": (Scale, (8, 10), 10),
    "mlp": (lambda: layers(784, 512, 512, 10), (64, 784), 10),
    "cnn": (convolutions, (64, 1, 28, 28), 10),
    "big": (lambda: layers(2048, 4096, 4096, 10), (8, 2048), 10),
    "many": (lambda: layers(*[64] * 101), (32, 64), 64),
}


def numbers(count, seed):
    """Returns values from -1 to 1, the same in Python and in C++."""
    values = torch.arange(count, dtype=torch.float64).add_(1000.0 * seed).mul_(12.9898).sin_()
    values.mul_(43758.5453)
    return values.sub_(values.floor()).mul_(2).sub_(1).float()


def fill(model):
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            fan_in = parameter[0].numel()
            bound = (6 / fan_in) ** 0.5 if parameter.dim() > 1 else 0.01
            parameter.copy_(numbers(parameter.numel(), i).mul_(bound).reshape(parameter.shape))


class Worker:
    """Runs one of the processes; all get the same commands in the same order."""

    def __init__(self, rank, port):
        self.rank = rank
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                                world_size=RANKS, timeout=timedelta(seconds=60))
        self.name = None

    def set_up(self, name):
        make, shape, classes = CASES[name.replace("_plain", "")]
        self.name = name
        self.model = make()
        fill(self.model)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if not name.endswith("_plain"):
            self.model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.loss = nn.CrossEntropyLoss()
        count = torch.Size(shape).numel()
        self.x = numbers(count, 100 + self.rank).reshape(shape)
        self.y = torch.arange(shape[0]) * (3 + self.rank) % classes

    def step(self):
        loss = self.loss(self.model(self.x), self.y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss

    def check(self, name, steps):
        self.set_up(name)
        losses = []
        for _ in range(steps):
            loss = self.step().detach()
            dist.all_reduce(loss)
            losses.append(loss.item() / RANKS)
        return self.parameters, losses[0], losses[-1]

    def time(self, name, steps):
        if name != self.name:
            self.set_up(name)
            for _ in range(5):
                self.step()
        cpu = time.process_time()
        for _ in range(1 + steps // 10):
            self.step()
        dist.barrier()
        begin = time.monotonic()
        for _ in range(steps):
            self.step()
        return time.monotonic() - begin, time.process_time() - cpu

    def obey(self, line):
        words = line.split()
        if words[0] == "check":
            return self.check(words[1], int(words[2]))
        return self.time(words[0], int(words[1]))


def run_second(pipe, port):
    # The first process ends it by closing the pipe.
    worker = Worker(1, port)
    try:
        while True:
            pipe.send(worker.obey(pipe.recv()))
    except EOFError:
        pass


def free_port():
    import socket
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def main():
    if not dist.is_available():
        return
    context = torch.multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    port = free_port()
    second = context.Process(target=run_second, args=(other, port), daemon=True)
    second.start()
    other.close()
    worker = Worker(0, port)
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        mine.send(line)
        first, second_answer = worker.obey(line), mine.recv()
        if line.startswith("check"):
            print(*first, flush=True)
        else:
            print(max(first[0], second_answer[0]), first[1] + second_answer[1], flush=True)
    mine.close()
    second.join()


if __name__ == "__main__":
    main()
