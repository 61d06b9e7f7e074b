"""Compiled parts of placeit: rules of execution and simulators."""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated

import numpy
import numpy.typing
from numpy.typing import NDArray


class Tables:
    """A problem as the compiled functions read it."""

    def __init__(self, compute: numpy.typing.NDArray[numpy.float64], edges: numpy.typing.NDArray[numpy.int32], edge_bytes: numpy.typing.NDArray[numpy.float64], edge_tensor: numpy.typing.NDArray[numpy.int32], latency: numpy.typing.NDArray[numpy.float64], bandwidth: numpy.typing.NDArray[numpy.float64], cut: numpy.typing.NDArray[numpy.float64], param_bytes: numpy.typing.NDArray[numpy.float64], memory: numpy.typing.NDArray[numpy.float64], conflicts: numpy.typing.NDArray[numpy.bool], cliques: numpy.typing.NDArray[numpy.bool], host: numpy.typing.NDArray[numpy.float64], order: numpy.typing.NDArray[numpy.int32], tied: numpy.typing.NDArray[numpy.float64]) -> None: ...

    @property
    def ops(self) -> int: ...

    @property
    def devices(self) -> int: ...

    @property
    def edges(self) -> int: ...

class LinkModel(enum.Enum):
    contention_free = 0

    channel = 1

class Discipline(enum.Enum):
    fifo = 0

    priority = 1

    planned = 2

class Machine:
    """
    The rules of one placement, and the state of its requests. Methods tell what has happened, and return what to
    start now: nodes, and -1 - r for a slot whose request has ended; None if it cannot have happened.
    """

    def __init__(self, tables: Tables, place: numpy.typing.NDArray[numpy.int32], links: LinkModel, queue: Discipline, slots: int) -> None: ...

    def rank(self, priority: numpy.typing.NDArray[numpy.float64]) -> None:
        """Give every op its priority, float64[V], the higher goes first."""

    def grow(self, slots: int) -> None:
        """Make room for 'slots' requests in flight."""

    def share(self, device: int) -> None:
        """Have a device run any number of ops at once."""

    def begin(self, slot: int) -> list[int] | None: ...

    def op_finished(self, node: int) -> list[int] | None: ...

    def transfer_sent(self, node: int) -> list[int] | None: ...

    def transfer_finished(self, node: int) -> list[int] | None: ...

    def abort(self, slot: int) -> list[int]: ...

    def device_lost(self, device: int) -> list[int]: ...

    def aborted(self, slot: int) -> bool:
        """Return whether the request of a slot is aborted."""

    def running(self, slot: int) -> list[int]:
        """Return the nodes of a slot that were started and have not finished."""

class Groups:
    """Groups of ops, and what they cost alone and in segments."""

    def __init__(self, edges: numpy.typing.NDArray[numpy.int32], tensor_bytes: numpy.typing.NDArray[numpy.float64], core: numpy.typing.NDArray[numpy.float64], cut_per_byte: numpy.typing.NDArray[numpy.float64], dispatch: numpy.typing.NDArray[numpy.float64], load: numpy.typing.NDArray[numpy.float64], beside: numpy.typing.NDArray[numpy.float64], conflicts: numpy.typing.NDArray[numpy.bool], read: numpy.typing.NDArray[numpy.float64], latency: numpy.typing.NDArray[numpy.float64], bandwidth: numpy.typing.NDArray[numpy.float64], passthrough: numpy.typing.NDArray[numpy.bool], cliques: numpy.typing.NDArray[numpy.bool], host: numpy.typing.NDArray[numpy.float64], in_flight: float, outside: numpy.typing.NDArray[numpy.float64]) -> None: ...

    def merge(self, devices: numpy.typing.NDArray[numpy.int32], segment_of: numpy.typing.NDArray[numpy.int32]) -> float:
        """
        Merge consecutive segments on a device while the plan takes no longer; write the segment of each group, int32[G], and return the plan's seconds.
        """

    def divide(self, segment_of: numpy.typing.NDArray[numpy.int32], devices: numpy.typing.NDArray[numpy.int32], moves: numpy.typing.NDArray[numpy.int32], seconds: numpy.typing.NDArray[numpy.float64]) -> int:
        """
        Number segments, int32[G], in topological order; write the tensors between them, int32[E, 3], and their seconds, float64[S]; return how many tensors there are.
        """

class SegmentSearch:
    """Simulated annealing of a placement of groups by its plan."""

    def __init__(self, groups: Groups, placement: numpy.typing.NDArray[numpy.int32], feasible: numpy.typing.NDArray[numpy.bool], param_bytes: numpy.typing.NDArray[numpy.float64], memory: numpy.typing.NDArray[numpy.float64], steps: int, heat: float, bit_generator: object | None) -> None: ...

    def advance(self, steps: int) -> None:
        """Try the next moves; the lock of the bit generator has to be held."""

    @property
    def over(self) -> bool: ...

    def write_best(self, placement: numpy.typing.NDArray[numpy.int32]) -> None:
        """Write the best placement so far, int32[G]."""

class ExactSearch:
    """
    The feasible placements of a problem, depth first, cut off by lower bounds.
    """

    def __init__(self, tables: Tables, tail: numpy.typing.NDArray[numpy.float64], alike: numpy.typing.NDArray[numpy.int32], cliques: numpy.typing.NDArray[numpy.bool], share: numpy.typing.NDArray[numpy.float64], capacity: bool) -> None: ...

    def next(self, placements: numpy.typing.NDArray[numpy.int32], bound: float, nodes: int) -> tuple[int, int]:
        """
        Write the next placements whose lower bound is below a bound, int32[N, V]; return how many there are, and how
        many partial placements were examined to find them.
        """

    @property
    def over(self) -> bool: ...

def spread(seconds: numpy.typing.NDArray[numpy.float64], limit: int, devices: numpy.typing.NDArray[numpy.int32]) -> None:
    """
    Write devices for ops, int32[n], evenly and with the least sum of seconds, float64[n, D], that some steps find.
    """

class Memory(enum.Enum):
    """How memory is taken into account."""

    weights_only = 0
    """Over-full devices cost inf."""

    track = 1
    """The peak of live tensors is recorded, too."""

    limit = 2
    """A peak over a device's memory costs inf."""

class Options:
    """
    How placements are simulated; noise is the half width of the factor on all seconds.
    """

    def __init__(self, links: LinkModel, queue: Discipline, memory: Memory = Memory.weights_only, noise: float = 0.0) -> None: ...

    @property
    def links(self) -> LinkModel: ...

    @property
    def queue(self) -> Discipline: ...

    @property
    def memory(self) -> Memory: ...

    @property
    def noise(self) -> float: ...

class CostModel:
    """The cost of a placement, for compiled searches."""

    def __init__(self, tables: Tables, priority: numpy.typing.NDArray[numpy.float64], options: Options) -> None:
        """The makespan of one request; priority: [V], or empty for b-levels."""

    @staticmethod
    def capacity(tables: Tables) -> CostModel:
        """The seconds per request of the busiest resource."""

def makespans(tables: Tables, placements: numpy.typing.NDArray[numpy.int32], priority: numpy.typing.NDArray[numpy.float64], options: Options, seed: int, arrivals: numpy.typing.NDArray[numpy.float64], slots: int, threads: int, seconds: numpy.typing.NDArray[numpy.float64]) -> None:
    """
    Write the seconds of each placement, float64[B]; IndexError for a device that does not exist.
    """

def record_requests(tables: Tables, place: numpy.typing.NDArray[numpy.int32], priority: numpy.typing.NDArray[numpy.float64], options: Options, seed: int, arrivals: numpy.typing.NDArray[numpy.float64], slots: int, times: numpy.typing.NDArray[numpy.float64], log: numpy.typing.NDArray[numpy.float64], peak: numpy.typing.NDArray[numpy.float64]) -> float:
    """
    Simulate requests and write when they began and ended, float64[2, R], the start and the finish of every node of
    each, float64[2 * R, V + E], and the most bytes of each device, float64[D].
    """

def b_level(tables: Tables, place: numpy.typing.NDArray[numpy.int32], rank: numpy.typing.NDArray[numpy.float64]) -> None:
    """Write the longest path from each op to an exit, seconds, float64[V]."""

def busy_seconds(tables: Tables, place: numpy.typing.NDArray[numpy.int32], busy: numpy.typing.NDArray[numpy.float64]) -> float:
    """
    Write the seconds for which a request keeps each device, set of devices and pair of devices busy; return the most.
    """

def seconds_per_request(tables: Tables, placements: numpy.typing.NDArray[numpy.int32], seconds: numpy.typing.NDArray[numpy.float64]) -> None:
    """Write the least seconds per request of each placement, float64[B]."""

class Bell:
    """
    A counter of the kernel to poll, closed when neither Python nor a run refers to it.
    """

    def __init__(self) -> None: ...

    @property
    def descriptor(self) -> int: ...

    def ring(self) -> None: ...

class Lane:
    """
    Work for the thread of a device or a link, which runs it one by one, by priority and in order.
    """

    def __init__(self) -> None: ...

    def submit(self, job: Callable[[], object]) -> None:
        """Queue a function, which must not raise: that would end the thread."""

    def work(self) -> None:
        """
        Run queued work, until it is closed and nothing is left: for its thread.
        """

    def close(self, reason: object | None = None) -> None:
        """Have `work` return once nothing is queued."""

    @property
    def ended(self) -> bool:
        """Whether its thread has left `work`: queued work will not run."""

    @property
    def spun(self) -> float:
        """Seconds that its thread has spun."""

    @property
    def begun(self) -> int:
        """How many pieces of work have begun there."""

    @property
    def lends(self) -> float:
        """Seconds of the longest segment that a caller may run in its place."""

    @lends.setter
    def lends(self, arg: float, /) -> None: ...

    @property
    def spins(self) -> float:
        """
        Seconds that its thread waits awake before it sleeps, while a core is idle.
        """

    @spins.setter
    def spins(self, arg: float, /) -> None: ...

class Ended:
    """A request has ended, successfully unless a node of it has failed."""

    @property
    def slot(self) -> int: ...

    @property
    def at(self) -> float: ...

class Failed:
    """
    The first node that failed in a run or, if it has a bell, in a request.
    """

    @property
    def node(self) -> int: ...

    @property
    def status(self) -> int: ...

    @property
    def at(self) -> float: ...

class Cancelled:
    """The run was stopped."""

    @property
    def at(self) -> float: ...

class Late:
    """The run was not over at its deadline."""

    @property
    def running(self) -> list[int]:
        """int64, nodes that had started then, and had not ended."""

class Broken:
    """It is not known any more what is to run."""

    @property
    def why(self) -> str: ...

class Waited(enum.Enum):
    """How waiting for a run has ended."""

    over = 0

    late = 1

    inside = 2

    gone = 3

class Report:
    """
    Called by a device to report the end of a segment or a transfer, on any thread.
    """

    def __call__(self, start: float, finish: float, error: object | None) -> bool:
        """
        Report start and finish, in seconds of time.perf_counter, and the error, or None.
        Returns whether the report was awaited: only the first one of a run is.
        """

class Executor:
    """Runs a plan on lanes, one run after another."""

    def __init__(self, rules: Machine, lanes: Sequence[Lane], slowdown: numpy.typing.NDArray[numpy.float64]) -> None: ...

    def set_entry(self, node: int, lane: int, function: int, argument: int) -> None:
        """Run a segment by a C function, int (*)(void *), and its argument."""

    def set_call(self, node: int, lane: int, run: Callable[[], object], lendable: bool = False) -> None:
        """
        Run a segment by a Python function without arguments.
        'lendable': whether callers may run it on their threads, as it is in C, so that no signal handler interrupts it.
        """

    def set_start(self, node: int, lane: int, start: Callable[[Report], object]) -> None:
        """
        Start a node by a Python function, which gets a `Report` and has it called when the node has ended.
        'lane' -1: it is called on the thread that decides to start the node.
        """

    def set_transfer(self, node: int, lane: int, seconds: float) -> None:
        """Have a transfer keep a link busy for some seconds."""

    def forget(self, slot: int) -> None:
        """
        Have no node of a slot that is not in flight carried out any more, and release its functions.
        """

    def in_flight(self, slot: int) -> bool:
        """Return whether a request is in flight in a slot."""

    def grow(self, slots: int) -> None:
        """Make room for more slots, in the rules, too."""

    def spin(self, seconds: float) -> None:
        """Have callers wait awake for some seconds before they sleep."""

    @property
    def priority(self) -> int:
        """
        Of what waits for a lane, the lowest number goes first; for nodes that start from now on.
        """

    @priority.setter
    def priority(self, arg: int, /) -> None: ...

    def run(self, requests: int, waiting: int, deadline: float) -> Waited:
        """
        Run requests in the first slots, and others as these end, and wait for the end of all.
        """

    def begin(self, requests: int, waiting: int, time: float) -> None:
        """
        Begin as `run` does, without waiting; 'time' is now, by the clock of the devices.
        """

    def wait(self, deadline: float) -> Waited:
        """Wait for the run to be over; stop it at the deadline."""

    def watch(self, until: float) -> bool:
        """
        Wait for the run to be over, until some time at most; return whether it is over.
        """

    @property
    def inside(self) -> bool:
        """
        Whether this thread waits for a run, in the middle of a signal handler.
        """

    def open(self, bell: Bell) -> None:
        """Begin a run that requests are added to."""

    def admit(self, slot: int) -> bool:
        """Begin a request in a slot; False if the run was stopped."""

    def admit_no_more(self) -> None: ...

    def stop(self) -> None: ...

    def incidents(self) -> list[Ended | Failed | Cancelled | Late | Broken]:
        """Return what has happened since the last call."""

    def running(self) -> list[int]:
        """Return the nodes that have started, and have not ended."""

    def ran(self, slot: int) -> list[tuple[int, float, float]]:
        """
        Return node, start and finish of each node that ran since the request in a slot began, by start.
        """

    def seconds(self, last: bool, found: numpy.typing.NDArray[numpy.float64]) -> None:
        """
        Write the median seconds of each op over its last runs, or its seconds in the last one, to float64[V].
        """

    def blend(self, runs: int, seconds: numpy.typing.NDArray[numpy.float64]) -> None:
        """
        Replace the samples of the last runs of each op by seconds, float64[V].
        """

    def error(self, node: int) -> object:
        """
        Take the error that the Python function of a node raised or reported last; None for other nodes.
        """

    def when_over(self, call: Callable[[], object]) -> bool:
        """
        Have a function called when the run is over, on the thread that ends it; False if it is over already.
        """

    @property
    def stopped(self) -> bool: ...

    @property
    def over(self) -> bool: ...

    @property
    def begun_at(self) -> float: ...

    @property
    def ended_at(self) -> float: ...

def exit() -> None:
    """
    Have threads that wait for runs wait for ever, as the interpreter exits.
    """

def keep(running: list[Executor]) -> None:
    """
    Keep executors whose runs have not ended for as long as the process lives.
    """

def leave(seconds: float) -> None:
    """
    Have threads wait for ever where they would take the interpreter's lock, as the interpreter exits; wait some seconds at
    most for those that hold it.
    """

def spend() -> int:
    """
    Return the address of an entry that keeps its thread busy. Its argument is the address of int64[3]: nanoseconds
    to take, number of calls, and the status to return.
    """

class State(enum.Enum):
    """State of a request of a queue."""

    outside = 0

    waiting = 1

    flying = 2

    ended = 3

    expired = 4

    cancelled = 5

class Submission:
    """A request of a queue."""

    def __init__(self, inputs: Sequence[object], outputs: Sequence[object], deadline: float, priority: int = 0) -> None:
        """
        'inputs' and 'outputs': contiguous arrays, to be kept by the caller until it is acknowledged. 'priority': requests of a lower number begin first.
        """

    @property
    def state(self) -> State: ...

    @property
    def acknowledged(self) -> bool: ...

    @property
    def replica(self) -> int: ...

    @property
    def slot(self) -> int: ...

    @property
    def number(self) -> int:
        """Number among the requests that began."""

    @property
    def alone(self) -> bool:
        """Whether no other request was in flight at the same time."""

    @property
    def begun(self) -> float:
        """Seconds, by time.perf_counter."""

    @property
    def ended(self) -> float:
        """Seconds, by time.perf_counter."""

    def ran(self) -> list[tuple[int, float, float]]:
        """
        Return node, start and finish of each node that ran, by start; for a request that has ended.
        """

class RequestQueue:
    """
    The requests of a server that need no Python from their submission to their end.
    """

    def __init__(self) -> None: ...

    def add(self, executor: Executor, slots: Sequence[object], bell: Bell, every: int) -> int:
        """
        Add a replica, and return its number. 'slots': (inputs, outputs) of each slot, arrays that are kept by the caller,
        as the executor is. 'every': for a candidate, which takes one request in 'every', one at a time; else 0.
        """

    def open(self, replica: int) -> None:
        """
        Have the executor of a replica begin a run, and the replica take requests.
        """

    def close(self, replica: int) -> None:
        """Have a replica take no more requests."""

    def retire(self, replica: int) -> bool:
        """
        Have a replica take no more requests; return whether none is in flight there.
        """

    def adopt(self, replica: int) -> None:
        """Have a candidate take as many requests as any other replica."""

    def again(self, replica: int) -> None:
        """
        Have the requests in flight on a closed replica, whose run is over, wait again.
        """

    def put(self, submission: Submission) -> bool:
        """
        Have a request wait, and begin as soon as it can; return whether no other one has an earlier deadline.
        """

    def cancel(self, submission: Submission) -> bool:
        """Take a waiting request out; return whether it is cancelled."""

    def watch(self, submission: Submission) -> None:
        """
        Have a replica's thread handle the end of a request as soon as it is over.
        """

    def wait(self, submission: Submission, until: float) -> bool:
        """Wait for the end of a request; return whether it is over."""

    def over(self, due: bool) -> list[Submission]:
        """
        Return the requests that are over and not acknowledged; 'due': only ones that no other thread handles.
        """

    def acknowledge(self, submission: Submission) -> None:
        """Record that the end of a request was handled."""

    def expire(self) -> float:
        """
        Take waiting requests out whose deadline is over; return the next deadline.
        """

    def withdraw(self) -> list[Submission]:
        """Take out all waiting requests, and return them."""

    def flying(self) -> list[Submission]:
        """Return the requests in flight."""

    def in_slot(self, replica: int, slot: int) -> Submission | None:
        """Return the request in flight in a slot, or None."""

    def drop(self, replica: int, slot: int) -> None:
        """Take the request in a slot out, as it has failed or was given up."""

    def reserve(self, replica: int) -> int:
        """Take a slot for a request that Python begins; -1 if none is free."""

    def release(self, replica: int, slot: int) -> None:
        """Give a slot back that was reserved."""

    def in_flight(self, replica: int) -> int:
        """Return how many slots of a replica are taken."""

    def enter(self) -> int:
        """Count a request that Python begins, and return its number."""

    def exit(self) -> None: ...

    def tell_all(self) -> None:
        """Have the bells ring for every request that ends."""

    def wait_for_room(self, seen: int, until: float) -> None:
        """Wait until 'room' is not 'seen', or a signal comes."""

    def make_room(self) -> None: ...

    @property
    def room(self) -> int:
        """Counter, raised when a request leaves."""

    @property
    def begun(self) -> int: ...

    @property
    def waiting(self) -> int: ...

def in_arena_of_one(library: str, function: Callable[[], object]) -> object:
    """
    Run a function in an arena of one thread of the oneTBB at a path, if that is loaded; return what it returns.
    """

class CompiledProgram:
    """A library with a program that AOTInductor has compiled."""

    def __init__(self, path: str) -> None:
        """Load a library. Raises RuntimeError."""

class CompiledInstance:
    """A compiled program with the memory that it reads and writes."""

    def __init__(self, program: CompiledProgram, inputs: Sequence[tuple[int, str, Sequence[int]]], outputs: Sequence[tuple[int, str, Sequence[int]]]) -> None:
        """
        Each tensor, contiguous, is the address of its memory, which the caller keeps alive, its type, such as 'float32', and
        its sizes.
        """

    def read(self, index: int, address: int) -> None:
        """Read an input from other memory in later runs."""

    @property
    def entry(self) -> tuple[int, int]:
        """Addresses of the function that runs it, and of its argument."""

def upward_ranks(tables: Tables, compute: numpy.typing.NDArray[numpy.float64], comm: numpy.typing.NDArray[numpy.float64], rank: numpy.typing.NDArray[numpy.float64]) -> None:
    """
    Write the mean length of the longest path from the start of each op to an exit, seconds, float64[V].
    """

def downward_ranks(tables: Tables, compute: numpy.typing.NDArray[numpy.float64], comm: numpy.typing.NDArray[numpy.float64], rank: numpy.typing.NDArray[numpy.float64]) -> None:
    """
    Write the mean length of the longest path from an entry to the start of each op, seconds, float64[V].
    """

def optimistic_costs(tables: Tables, comm: numpy.typing.NDArray[numpy.float64], cost: numpy.typing.NDArray[numpy.float64]) -> None:
    """
    Write the least seconds from the end of each op on each device to an exit, if devices were free, float64[V, D].
    """

def ready_order(tables: Tables, by_priority: numpy.typing.NDArray[numpy.int32], order: numpy.typing.NDArray[numpy.int32]) -> None:
    """Write the order in which ops leave a ready list, int32[V]."""

def insertion_schedule(tables: Tables, order: numpy.typing.NDArray[numpy.int32], compute: numpy.typing.NDArray[numpy.float64], onward: numpy.typing.NDArray[numpy.float64], memory: numpy.typing.NDArray[numpy.float64], links: LinkModel, place: numpy.typing.NDArray[numpy.int32], start: numpy.typing.NDArray[numpy.float64], finish: numpy.typing.NDArray[numpy.float64]) -> bool:
    """
    Write the device, start and finish of each op, each in the earliest gap that holds it, where its finish and the seconds onward are least; return whether the weights fit.
    """

def earliest_start_placement(tables: Tables, order: numpy.typing.NDArray[numpy.int32], lots: numpy.typing.NDArray[numpy.float64], place: numpy.typing.NDArray[numpy.int32]) -> None:
    """
    Write the device of each op, int32[V], where it starts earliest behind all that was placed before.
    """

class SplitCost(enum.Enum):
    """What a split costs."""

    busiest = 0
    """The seconds of its busiest run."""

    sum = 1
    """The seconds of all runs in turn."""

def contiguous_split(tables: Tables, order: numpy.typing.NDArray[numpy.int32], borders: numpy.typing.NDArray[numpy.int32], kinds: numpy.typing.NDArray[numpy.int32], cost: SplitCost, place: numpy.typing.NDArray[numpy.int32]) -> float:
    """
    Write the device of each op, int32[V], in the best contiguous split of an order over devices of some kinds, int32[D]; return its seconds, inf if no split can run.
    """

def earliest_finish_devices(tables: Tables, place: numpy.typing.NDArray[numpy.int32], ops: numpy.typing.NDArray[numpy.int64], devices: numpy.typing.NDArray[numpy.int32]) -> None:
    """
    Write the device where each op would finish first if moved alone, int32[K].
    """

class Annealing:
    """A search by simulated annealing, from a placement on."""

    def __init__(self, model: CostModel, place: numpy.typing.NDArray[numpy.int32], scale: float, seed: int) -> None: ...

    def run(self, first: int, last: int, steps: int) -> None:
        """Do moves first to last, excluded, of steps in all."""

    @property
    def seconds(self) -> float:
        """Cost of the best placement so far; inf before there is one."""

    def best(self, place: numpy.typing.NDArray[numpy.int32]) -> None:
        """Write the best placement so far, int32[V]."""

class Affinity:
    """
    How likely walks of a few edges between different ops are (a sparse matrix).
    """

    @property
    def ptr(self) -> Annotated[NDArray[numpy.int64], dict(writable=False)]: ...

    @property
    def op(self) -> Annotated[NDArray[numpy.int64], dict(writable=False)]: ...

    @property
    def share(self) -> Annotated[NDArray[numpy.float32], dict(writable=False)]: ...

def affinity(ptr: numpy.typing.NDArray[numpy.int64], to: numpy.typing.NDArray[numpy.int64], chance: numpy.typing.NDArray[numpy.float64]) -> Affinity: ...

def device_features(tables: Tables, affinity: Affinity, arrays: object, ops: numpy.typing.NDArray[numpy.int64], made: numpy.typing.NDArray[numpy.float64]) -> None: ...

def place_ops(tables: Tables, affinity: Affinity, arrays: object, ops: numpy.typing.NDArray[numpy.int64], devices: numpy.typing.NDArray[numpy.int64]) -> None: ...

def see_devices(tables: Tables, affinity: Affinity, arrays: object, ops: numpy.typing.NDArray[numpy.int64], step: int, unit: float, inputs: numpy.typing.NDArray[numpy.float32], allowed: numpy.typing.NDArray[numpy.bool]) -> None: ...

def play_episodes(first: int, last: int, tables: Tables, affinity: Affinity, arrays: object, record: object, policy: object, manner: object, kept: numpy.typing.NDArray[numpy.int32], rank: numpy.typing.NDArray[numpy.float64], unit: float, random: numpy.typing.NDArray[numpy.uint64]) -> None: ...

class GpNet:
    """One problem of a batch of gpNets; one thread at a time may use it."""

    def __init__(self, tables: Tables, node: numpy.typing.NDArray[numpy.int64], first: numpy.typing.NDArray[numpy.int64], bandwidth: float, unit: float, pivots: bool) -> None: ...

    def set(self, placement: numpy.typing.NDArray[numpy.int32], batch: object) -> float: ...

    def move(self, op: int, placement: numpy.typing.NDArray[numpy.int32], batch: object) -> float: ...

def pass_forward_float32(order: object, layers: object, edges: numpy.typing.NDArray[numpy.float32], embedding: numpy.typing.NDArray[numpy.float32], messages: object) -> None: ...

def pass_backward_float32(order: object, layers: object, edges: numpy.typing.NDArray[numpy.float32], embedding: numpy.typing.NDArray[numpy.float32], messages: object, gradient: numpy.typing.NDArray[numpy.float32], of_edges: numpy.typing.NDArray[numpy.float32], of_layers: object) -> None: ...

def pass_forward_float64(order: object, layers: object, edges: numpy.typing.NDArray[numpy.float64], embedding: numpy.typing.NDArray[numpy.float64], messages: object) -> None: ...

def pass_backward_float64(order: object, layers: object, edges: numpy.typing.NDArray[numpy.float64], embedding: numpy.typing.NDArray[numpy.float64], messages: object, gradient: numpy.typing.NDArray[numpy.float64], of_edges: numpy.typing.NDArray[numpy.float64], of_layers: object) -> None: ...

def join_groups(edges: numpy.typing.NDArray[numpy.int64], kept: int, least: int, most: int, group: numpy.typing.NDArray[numpy.int64]) -> int: ...

def fractal_dimensions(ptr: numpy.typing.NDArray[numpy.int32], others: numpy.typing.NDArray[numpy.int32], dimension: numpy.typing.NDArray[numpy.float64]) -> None: ...
