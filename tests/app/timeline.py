"""A run of the ready app on a simulated fleet, written down naively: what happens when.

It shares no code with the package but what derives random numbers. A fleet is a list,
and of the model it knows how many numbers a task has. It gives the lines of
``history.jsonl``: times, order, staleness, bytes, joules and tasks lost, and the factor
of the learning rate of each task. Codes are as long as zstd makes them, so that it is
told the bytes of coded tasks.
"""

import csv
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from flwr_asyncdrop.seeding import numpy_generator, torch_generator

HEADER = 128  # bytes of an array before its numbers
WAITING = {"fedavg", "fedbuff-wait", "asyncdrop-plus"}
BUFFERED = {"fedbuff", "fedbuff-wait", "asyncdrop-plus"}
SPREADS = {"asyncdrop": 0.0, "hetero-asyncdrop": 0.0, "asyncdrop-plus": 1 / 3}


@dataclass
class Device:
    seconds: float  # of a task with the full model
    down: float = math.inf  # bytes a second
    up: float = math.inf
    latency: float = 0.0
    jitter: float = 0.0
    dropout: float = 0.0
    period: float = 1.0
    intervals: tuple = ((0.0, math.inf),)
    watts: float = 0.0
    joules: float = 0.0  # of a byte

    def usual(self, compute, down, up):
        computed = self.seconds * compute
        return computed + down / self.down + up / self.up + 2 * self.latency

    def there_from(self, time):
        """Return the first moment from `time` on at which it is there."""
        first = math.floor(time / self.period) - 1
        starts = (number * self.period for number in range(first, first + 4))
        spans = ((at + a, at + b) for at in starts for a, b in self.intervals)
        return min(max(begin, time) for begin, end in spans if time < end)


def levels(config, count):
    """Return the fleet of speed levels."""
    number, base = min(config["levels"], count), config["step-seconds"]
    base *= config["local-steps"]
    slower = (config["speed-ratio"] - 1) / max(number - 1, 1)
    devices = []
    for index in range(count):
        slow = 1 + slower * (index * number // count)
        link = (config["bandwidth-mbps"] * 125_000 or math.inf) / slow
        device = Device(base * slow, link, link, 0.0, config["jitter"])
        device.dropout, device.watts = config["dropout"], config["watts"]
        device.joules = config["joules-per-megabyte"] / 1e6
        if (share := config["availability"]) < 1:
            device.period = end = 20 * base
            phase = numpy_generator(config["seed"], "phase", index).random()
            stretch = phase * end, (phase + share) * end
            over = (0.0, stretch[1] - end), (stretch[0], end)
            device.intervals = over if stretch[1] > end else (stretch,)
        devices.append(device)
    return devices


def traced(config, count):
    """Return the fleet of a trace."""
    lines = list(csv.DictReader(Path(config["trace"]).read_text().splitlines()))
    devices = []
    for index in range(count):
        line = dict(lines[index % len(lines)])
        present = line.pop("available")
        cells = {name: float(cell or 0) for name, cell in line.items()}
        device = Device(
            cells["seconds_per_step"] * config["local-steps"],
            (cells["down_mbps"] or math.inf) * 125_000,
            (cells["up_mbps"] or math.inf) * 125_000,
            cells["latency"],
            cells["jitter"],
            cells["dropout"],
            watts=cells["watts"],
            joules=cells["joules_per_megabyte"] / 1e6,
        )
        if present:
            device.period = cells["period"]
            pairs = (text.split("-") for text in present.split())
            device.intervals = tuple((float(a), float(b)) for a, b in pairs)
        devices.append(device)
    return sorted(devices, key=lambda device: device.seconds)


def shapes(first, second):
    return (first, 64), (first,), (second, first), (second,), (10, second), (10,)


def num_bytes(widths):
    return sum(HEADER + 4 * math.prod(shape) for shape in shapes(*widths))


def products(widths):
    return sum(math.prod(shape) for shape in shapes(*widths) if len(shape) == 2)


@dataclass
class Task:
    number: int
    device: int
    rank: int
    sent: float
    version: int
    compute: float
    down: int
    usual: float
    lr_factor: float
    arrives: float
    deadline: float
    given_up: float
    lost: bool
    late: bool = False

    @property
    def moment(self):
        return min(self.arrives, self.given_up if self.late else self.deadline)


class Timeline:
    """The `lines` and `tasks` of a run, from its whole run-config.

    `coded` has, by number, the bytes of a coded task: down, up at most, and up.
    """

    def __init__(self, config, count, coded=None):
        self.config, self.coded = config, coded
        self.devices = (traced if config["trace"] else levels)(config, count)
        self.slots = min(config["in-flight"], count)
        places = sorted(range(count), key=lambda d: (self.devices[d].seconds, d))
        self.ranks = {d: p * self.slots // count for p, d in enumerate(places)}
        self.time, self.version, self.updates = 0.0, 0, 0
        self.down, self.up, self.joules = 0, 0, 0.0
        self.out, self.waiting, self.collected = [], [], 0
        self.failures, self.in_a_row, self.released = Counter(), Counter(), Counter()
        self.lines, self.tasks, self.evaluated = [], [], 0
        self._run()

    def _run(self):
        total = self.config["num-rounds"] * self.slots
        limit = self.config["max-seconds"] or math.inf
        self._evaluate(0)
        while self.updates < total:
            wake = math.inf
            while self.time < limit and self._in_flight() < min(
                self.slots - len(self.waiting), total - self.updates
            ):
                if not self._send():
                    wake = min(map(self._free_from, self._idle()), default=math.inf)
                    break
            moments = [(task.moment, task.number, task) for task in self.out]
            moment, _, first = min(moments, default=(math.inf, 0, None))
            self.time = min(wake, limit, moment)
            if self.time == moment:
                self._end(first)
            elif self.time == limit:
                break
        if self.time == limit and self.updates > self.evaluated:
            self._evaluate((self.updates - 1) // self.slots + 1)
        self._write("end", updates=self.updates, failures=dict(self.failures))

    def _in_flight(self):
        return sum(not task.late for task in self.out)

    def _idle(self):
        taken = {task.device for task in (*self.out, *self.waiting)}
        return [d for d in range(len(self.devices)) if d not in taken]

    def _free_from(self, device):
        return self.devices[device].there_from(max(self.time, self.released[device]))

    def _send(self):
        config, number = self.config, len(self.tasks)
        idle = [d for d in self._idle() if self._free_from(d) == self.time]
        if not idle:
            return False
        if config["selection"] == "stratified":
            in_slots = (*(task for task in self.out if not task.late), *self.waiting)
            busy = Counter(task.rank for task in in_slots)
            rank = min({self.ranks[d] for d in idle}, key=lambda r: (busy[r], r))
            idle = [d for d in idle if self.ranks[d] == rank]
        draws = {
            name: numpy_generator(config["seed"], name, number)
            for name in ("device", "jitter", "dropout")
        }
        index = idle[int(draws["device"].integers(len(idle)))]
        device, left = self.devices[index], self.time
        compute, down, up = self._cost(self.ranks[index], number)
        usual = device.usual(compute, down, up)
        noise = draws["jitter"].standard_normal() if device.jitter else 0.0
        arrives = left + usual * math.exp(device.jitter * noise)
        overdue = config["deadline"] * usual or math.inf
        deadline, given_up = left + overdue, left + 2 * overdue
        if lost := bool(draws["dropout"].random() < device.dropout):
            deadline = given_up = deadline if overdue < math.inf else arrives
            arrives = math.inf
        milestones = config["lr-milestones"].split(",")
        decays = sum(left >= float(m[:-1]) for m in milestones if m.endswith("s"))
        task = Task(
            *(number, index, self.ranks[index], left, self.version, compute, down),
            *(usual, config["lr-gamma"] ** decays, arrives, deadline, given_up, lost),
        )
        self.tasks.append(task)
        self.out.append(task)
        self.down += down
        self.joules += device.watts * device.seconds * compute + device.joules * down
        return True

    def _cost(self, rank, number):
        """Return the compute of a task, and its bytes down and, at most, up."""
        full = tuple(round(size * self.config["width"]) for size in (128, 64))
        widths = self._widths(full, rank, number)
        compute = products(widths) / products(full)
        if self.config["duration"] == "paper":
            compute = sum(widths) / sum(full)
        if self.coded is not None:
            return compute, *self.coded.get(number, (0, 0, 0))[:2]
        return compute, num_bytes(widths), num_bytes(widths)

    def _widths(self, full, rank, number):
        algorithm = self.config["algo"]
        if algorithm not in SPREADS:
            return full
        place = 2 * rank / (self.slots - 1) - 1 if self.slots > 1 else 0.0
        rate = self.config["drop-rate"] * (1 + SPREADS[algorithm] * place)
        shares = [size * rate for size in full]
        if all(math.isclose(share, round(share)) for share in shares):
            return tuple(s - round(d) for s, d in zip(full, shares, strict=True))
        generator = torch_generator(self.config["seed"], "mask", number)
        total, widths = float(torch.rand((), generator=generator)), []
        for size, share in zip(full, shares, strict=True):
            before, total = total, total + share % 1
            more = math.floor(total) > math.floor(before)
            widths.append(size - int(share) - more)
        return tuple(widths)

    def _end(self, task):
        if self.time < min(task.arrives, task.given_up):
            task.late = True
            return
        self.out.remove(task)
        if task.lost or self.time < task.arrives:
            self._fail(task, "dropout" if task.lost else "no-reply")
            return
        up = task.down if self.coded is None else self.coded[task.number][2]
        self.up += up
        self.joules += self.devices[task.device].joules * up
        if task.late and self.config["late"] == "drop":
            self._fail(task, "late")
            return
        self._merge(task, up)

    def _fail(self, task, kind):
        self.failures[kind] += 1
        self.in_a_row[task.device] += 1
        after = self.config["quarantine-after"]
        beyond = self.in_a_row[task.device] - after
        if after and beyond >= 0:
            self.released[task.device] = self.time + 2 ** min(beyond, 6) * task.usual
        self._write_task("failure", task, kind=kind)

    def _merge(self, task, up):
        config, staleness = self.config, self.version - task.version
        self.in_a_row[task.device] = self.released[task.device] = 0
        size, waits = 1, config["algo"] in WAITING
        if config["algo"] in BUFFERED:
            size = config.get("buffer-size") or max(self.slots // 2, 1)
        elif waits:
            size = self.slots
        if config["algo"] == "asyncdrop-plus" and config["wait-limit"]:
            usual = median(device.seconds for device in self.devices)
            its_own = self.devices[task.device].seconds
            waits = usual / its_own <= config["wait-limit"]
        self.updates += 1
        self.collected += 1
        if self.collected == size:
            self.version, self.collected = self.version + 1, 0
            self.waiting.clear()
        elif waits:
            self.waiting.append(task)
        number = (self.updates - 1) // self.slots + 1
        counts = {"update": self.updates, "round": number, "version": self.version}
        sizes = {"bytes_down": task.down, "bytes_up": up, "compute": task.compute}
        late = {"late": True} if task.late else {}
        now = {"staleness": staleness, "in_flight": self._in_flight()}
        self._write_task("update", task, **counts, **sizes, **now, **late)
        last = number == config["num-rounds"]
        is_due = last or number % config["evaluate-every"] == 0
        if is_due and self.updates % self.slots == 0:
            self._evaluate(number)

    def _evaluate(self, number):
        self.evaluated = self.updates
        self._write("evaluation", source="server", round=number, update=self.updates)

    def _write(self, event, **fields):
        totals = {"time": self.time, "bytes_down": self.down, "bytes_up": self.up}
        if any(device.watts or device.joules for device in self.devices):
            totals["joules"] = self.joules
        self.lines.append({"event": event, **fields, **totals})

    def _write_task(self, event, task, **fields):
        who = {"device": task.device, "rank": task.rank, "dispatched_at": task.sent}
        self.lines.append({"event": event, "time": self.time, **who, **fields})
