"""What every world must do, as one suite that runs on each.

Subclass it in a test module and say how to launch::

    from worlds.suite import SEED, WorldSuite

    class TestVirtualWorld(WorldSuite):
        def launch(self, program, n, *, keep_going=False):
            ...

`launch(program, n)` runs ``await program(world)`` on `n` peers whose names sort in the order of their numbers, with
`SEED` as the job's seed, a wait deadline of some seconds, and returns peer → what the program returned. Programs are
functions of this module or `functools.partial` of one with plain arguments, so they pickle; what they return is plain
data and tensors. When a worker fails, `launch` raises its exception; with ``keep_going=True`` it lets the others go on
and returns exceptions as results. Tasks that a program spawned and did not await are awaited before its result counts.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.errors import BadMessage, Late, PeerLost
from shoal.world import Payload, Peer, Tag, Work, World, dense
from shoal.worlds.ring import ring_sum
from shoal.worlds.seeds import derive, generator

SEED = 1234
LONG = 20.0
"""Seconds that no test waits if the world is right."""

Program = Callable[[World], Coroutine[Any, Any, Any]]
COMPUTE = Work("compute", flops=1e3)


def place(world: World) -> int:
    return world.peers.index(world.me)


def number(value: float) -> Payload:
    return dense(torch.tensor([value]))


async def take(world: World, tag: Tag, source: int) -> Tensor:
    return (await world.recv(tag, source=world.peers[source])).body.tensors[0]


# ------------------------------------------------------------------------------------------------------- programs


async def out_of_order(world: World) -> list[float]:
    """Peer 0 sends five tags, peer 1 takes them backwards."""
    if place(world) == 0:
        for step in range(5):
            await world.send(world.peers[1], Tag("x", step, ("part", step)), number(step))
        return []
    return [(await take(world, Tag("x", step, ("part", step)), 0)).item() for step in reversed(range(5))]


async def same_tag(world: World) -> list[float]:
    """Messages of one tag and sender come in the order of sending."""
    if place(world) == 0:
        for n in range(20):
            await world.send(world.peers[1], Tag("x"), number(n))
        return []
    return [(await take(world, Tag("x"), 0)).item() for _ in range(20)]


async def exchange(world: World) -> float:
    """Everybody sends a megabyte to everybody before receiving anything."""
    others = [peer for peer in world.peers if peer != world.me]
    mine = torch.full((262_144,), float(place(world)))
    sends = [world.spawn(world.send(peer, Tag("x"), dense(mine)), "send") for peer in others]
    total = 0.0
    for peer in others:
        total += (await world.recv(Tag("x"), source=peer)).body.tensors[0].mean().item()
    for send in sends:
        await send
    return total


async def first_come(world: World) -> list[Peer]:
    """Peer 0 takes one message from each other peer in whatever order they arrive."""
    if place(world) > 0:
        await world.send(world.peers[0], Tag("ask", place(world)), number(place(world)))
        return []
    return [(await world.recv_any("ask")).source for _ in world.peers[1:]]


async def matching(world: World) -> list[int]:
    """`recv_any` with a condition leaves the others where they are, in order of arrival."""
    if place(world) == 0:
        for step in (1, 2, 3, 2):
            await world.send(world.peers[1], Tag("ask", step), number(step))
        return []
    steps = [(await world.recv_any("ask", match=lambda m: m.tag.step == 3)).tag.step]
    steps += [(await world.recv_any("ask", match=lambda m: m.tag.step > 1)).tag.step]
    steps += [(await world.recv_any("ask")).tag.step]
    return [*steps, (await world.recv_any("ask")).tag.step]


async def look_and_discard(world: World) -> tuple[list[int], int, list[int]]:
    """What has arrived can be looked at, and dropped when it is old."""
    if place(world) == 0:
        for step in range(5):
            await world.send(world.peers[1], Tag("grad", step), number(step))
        await world.send(world.peers[1], Tag("other", 0), number(0))
        await world.recv(Tag("bye"), source=world.peers[1])
        return [], 0, []
    while len(world.inbox("grad")) < 5:
        await world.sleep(0.001)
    seen = [message.tag.step for message in world.inbox("grad")]
    dropped = world.discard("grad", before_step=3)
    left = [message.tag.step for message in world.inbox("grad")]
    await take(world, Tag("grad", 4), 0)
    await take(world, Tag("other", 0), 0)
    await world.send(world.peers[0], Tag("bye"), number(0))
    return seen, dropped, left


async def too_late(world: World, kind: str) -> tuple[str, str, int]:
    """Nobody sends; the deadline passes while the other lives."""
    if place(world) == 1:
        await world.recv(Tag("bye"), source=world.peers[0])
        return "", "", 0
    try:
        if kind == "recv":
            await world.recv(Tag("x", 7), source=world.peers[1], within=0.02)
        else:
            await world.recv_any("x", within=0.02)
        caught = ("nothing", "", 0)
    except Late as late:
        caught = (type(late).__name__, late.peer, late.step)
    await world.send(world.peers[1], Tag("bye"), number(0))
    return caught


async def late_then_there(world: World) -> float:
    """A message that comes after a take gave up is still there for the next."""
    if place(world) == 1:
        await world.recv(Tag("go"), source=world.peers[0])
        await world.send(world.peers[0], Tag("x"), number(3))
        return 0.0
    with pytest.raises(Late):
        await world.recv(Tag("x"), source=world.peers[1], within=0.01)
    await world.send(world.peers[1], Tag("go"), number(0))
    return (await take(world, Tag("x"), 1)).item()


async def cancelled_take(world: World) -> float:
    """A take that was cancelled eats no message."""
    if place(world) == 1:
        await world.recv(Tag("go"), source=world.peers[0])
        await world.send(world.peers[0], Tag("x"), number(3))
        return 0.0
    task = world.spawn(world.recv(Tag("x"), source=world.peers[1]), "impatient")
    await world.sleep(0.001)
    task.cancel()
    await world.send(world.peers[1], Tag("go"), number(0))
    return (await take(world, Tag("x"), 1)).item()


async def returns_early(world: World) -> tuple[float, str, int]:
    """Peer 1 sends one message and is done: the message can be taken, then the peer is lost."""
    if place(world) == 1:
        await world.send(world.peers[0], Tag("x", 4), number(5))
        return 0.0, "", 0
    await world.sleep(0.05)
    got = await take(world, Tag("x", 4), 1)
    try:
        await world.recv(Tag("x", 9), source=world.peers[1], within=LONG)
    except PeerLost as lost:
        return got.item(), lost.peer, lost.step
    return got.item(), "nothing", 0


async def any_of_none(world: World) -> str:
    """`recv_any` does not wait for messages when nobody is left to send one."""
    if place(world) > 0:
        return ""
    try:
        await world.recv_any("x", within=LONG)
    except PeerLost as lost:
        return lost.peer
    return "nothing"


async def fails(world: World) -> tuple[str, str]:
    """Peer 1 fails; the others' waits for it name it and carry its error."""
    if place(world) == 1:
        raise KeyError("a planned mistake")
    try:
        await world.recv(Tag("x", 3), source=world.peers[1], within=LONG)
    except PeerLost as lost:
        return lost.peer, str(lost)
    return "nothing", ""


async def failing_task(world: World) -> str:
    """A spawned task fails while its worker waits for something else."""
    if place(world) == 1:

        async def fail() -> None:
            await world.sleep(0.001)
            raise ValueError("a planned mistake in a task")

        world.spawn(fail(), "fail")
        await world.recv(Tag("never"), source=world.peers[0], within=LONG)
    try:
        await world.recv(Tag("x"), source=world.peers[1], within=LONG)
    except PeerLost as lost:
        return str(lost)
    return "nothing"


async def unawaited_task(world: World) -> float:
    """A task that nobody awaits is finished all the same."""
    if place(world) == 0:

        async def later() -> None:
            await world.sleep(0.01)
            await world.send(world.peers[1], Tag("x"), number(8))

        world.spawn(later(), "later")
        return 0.0
    return (await take(world, Tag("x"), 0)).item()


async def marks(world: World) -> list[Any]:
    """Every key is sent on as it is reached; the partner takes them in the same order."""
    keys: list[tuple[str, int]] = [("block", n) for n in range(6)]
    if place(world) == 1:
        return [(await take(world, Tag("mark", n, ("block", n)), 0)).item() for n in range(6)]
    grads: dict[Any, Tensor] = {}

    def backward(mark: Callable[[Any], None]) -> None:
        for n, key in enumerate(keys):
            grads[key] = torch.full((3,), float(n)).sum(0, keepdim=True)
            mark(key)

    reached = []
    work = Work("backward", flops=1e6, marks={key: (n + 1) / 8 for n, key in enumerate(keys)})
    async for key in world.reach(backward, work):
        reached.append(key)
        n = keys.index(key)  # type: ignore[arg-type]
        await world.send(world.peers[1], Tag("mark", n, keys[n]), dense(grads[key]))
    return reached


async def exceptions(world: World) -> list[Any]:
    """What a computation raises comes out where it is awaited, after what it marked."""

    def bad() -> None:
        raise ZeroDivisionError("in run")

    def bad_later(mark: Callable[[Any], None]) -> None:
        mark("a")
        raise ZeroDivisionError("in reach")

    out: list[Any] = []
    try:
        await world.run(bad, COMPUTE)
    except ZeroDivisionError as error:
        out.append(str(error))
    try:
        async for key in world.reach(bad_later, Work("x", flops=1e3, marks={"a": 0.5})):
            out.append(key)  # noqa: PERF401 - what came before the exception counts
    except ZeroDivisionError as error:
        out.append(str(error))
    out.append(await world.run(lambda: "still alive", COMPUTE))
    return out


async def one_lane(world: World) -> list[int]:
    """Computations on a lane are done in the order of the calls, whatever they take."""
    order: list[int] = []
    tasks = [
        world.spawn(world.run(partial(order.append, n), Work("x", flops=1e4 * ((7 * n) % 5), lane="update")), "run")
        for n in range(10)
    ]
    for task in tasks:
        await task
    return order


async def numbers(world: World) -> tuple[Tensor, Tensor, Tensor]:
    """Seeded by key: the same for everybody; the default generator is left as it was."""
    before = torch.get_rng_state()
    drawn = torch.rand(4, generator=world.rng("partner", 3, ("x", 1)))
    layer = torch.nn.Dropout(0.5)
    dropped = await world.run(lambda: layer(torch.ones(64)), Work("forward", flops=1e3, seed=("forward", 3)))
    again = await world.run(lambda: layer(torch.ones(64)), Work("forward", flops=1e3, seed=("forward", 3)))
    other = await world.run(lambda: layer(torch.ones(64)), Work("forward", flops=1e3, seed=("forward", 4)))
    assert torch.equal(dropped, again)
    assert torch.equal(torch.get_rng_state(), before)
    return drawn, dropped, other


def part(n: int, numel: int, dtype: torch.dtype) -> Tensor:
    """What peer n brings to a sum."""
    gen = generator(SEED, "part", n)
    if dtype.is_floating_point:
        return torch.randn(numel, generator=gen, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 1000, (numel,), generator=gen).to(dtype)


async def sums(world: World, sizes: list[int], dtype: torch.dtype) -> list[Tensor]:
    """Several sums at the same time."""
    xs = [part(place(world), numel, dtype) for numel in sizes]
    tasks = [world.spawn(world.collective("sum", x, world.peers, Tag("sum", 0, (n,))), "sum") for n, x in enumerate(xs)]
    for task in tasks:
        await task
    return xs


async def strided_sum(world: World) -> Tensor:
    """The tensor is not contiguous: every second column of a matrix."""
    matrix = torch.zeros(3, 8)
    matrix[:, ::2] = part(place(world), 12, torch.float32).reshape(3, 4)
    await world.collective("sum", matrix[:, ::2], world.peers, Tag("sum"))
    return matrix


async def group_sums(world: World) -> Tensor:
    """Two groups sum at the same time under the same tag."""
    x = part(place(world), 9, torch.float64)
    group = world.peers[:2] if place(world) < 2 else world.peers[2:]
    await world.collective("sum", x, group, Tag("sum"))
    return x


async def unequal_sum(world: World) -> str:
    """Peer 1 brings another number of elements."""
    try:
        await world.collective("sum", torch.ones(6 + 4 * (place(world) == 1)), world.peers, Tag("sum", 5))
    except BadMessage as bad:
        return bad.peer
    except PeerLost:
        return "lost"
    return "nothing"


SENT = {
    "bfloat16": torch.arange(5, dtype=torch.bfloat16) / 3,
    "float16": torch.arange(5, dtype=torch.float16) / 3,
    "float64": torch.linspace(0, 1, 7, dtype=torch.float64),
    "int64": torch.tensor([2**62, -1, 0]),
    "int8": torch.arange(-3, 3, dtype=torch.int8),
    "uint8": torch.arange(250, 256, dtype=torch.int64).to(torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.5),
    "no elements": torch.zeros(0, 4),
    "three dimensions": torch.arange(24.0).reshape(2, 3, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "every third": torch.arange(10)[1::3],
    "expanded": torch.tensor([1.5, 2.5]).expand(3, 2),
    "not finite": torch.tensor([float("nan"), float("inf"), -0.0]),
    "needs gradient": torch.ones(3, requires_grad=True),
}


async def kinds_of_tensors(world: World) -> dict[str, Tensor]:
    """Every kind of tensor alone, and all together in one message."""
    if place(world) == 0:
        for n, tensor in enumerate(SENT.values()):
            await world.send(world.peers[1], Tag("x", n), dense(tensor))
        await world.send(world.peers[1], Tag("all"), Payload(tuple(SENT.values()), 100, "a codec"))
        await world.send(world.peers[1], Tag("none"), Payload((), 0))
        return {}
    got = {name: await take(world, Tag("x", n), 0) for n, name in enumerate(SENT)}
    together = (await world.recv(Tag("all"), source=world.peers[0])).body
    assert together.codec == "a codec"
    assert together.nbytes == 100
    for alone, with_others in zip(got.values(), together.tensors, strict=True):
        assert torch.equal(torch.nan_to_num(alone), torch.nan_to_num(with_others))
    assert (await world.recv(Tag("none"), source=world.peers[0])).body.tensors == ()
    return got


async def snapshot(world: World) -> Tensor:
    """A sender may write when `send` has returned; the receiver has what was sent, and may write to it."""
    if place(world) == 0:
        x = torch.ones(1000)
        await world.send(world.peers[1], Tag("x"), dense(x))
        x.zero_()
        await world.send(world.peers[1], Tag("zeroed"), number(0))
        return x
    await take(world, Tag("zeroed"), 0)
    got = await take(world, Tag("x"), 0)
    return got.add_(1)


async def bad_shape(world: World) -> tuple[str, int]:
    """`Message.one` refuses what does not fit and says who sent it."""
    if place(world) == 0:
        await world.send(world.peers[1], Tag("grad", 6), dense(torch.ones(3, 2)))
        return "", 0
    message = await world.recv(Tag("grad", 6), source=world.peers[0])
    try:
        message.one(torch.ones(2, 3))
    except BadMessage as bad:
        return bad.peer, bad.step
    return "nothing", 0


async def counters(world: World) -> tuple[int, int]:
    """Bytes of payload as the payload says, for messages and for a sum."""
    if place(world) == 0:
        await world.send(world.peers[1], Tag("x"), Payload((torch.ones(3),), 100))
        await world.recv(Tag("y"), source=world.peers[1])
    else:
        await world.recv(Tag("x"), source=world.peers[0])
        await world.send(world.peers[0], Tag("y"), Payload((torch.ones(3),), 10))
    await world.collective("sum", torch.ones(8), world.peers, Tag("sum"))
    return world.sent_bytes, world.received_bytes


async def refused(world: World) -> list[str]:
    """Sending to oneself or to nobody is a mistake in the protocol."""
    out = []
    for to in (world.me, "nobody"):
        try:
            await world.send(to, Tag("x"), number(0))
            out.append("sent")
        except ValueError:
            out.append("refused")
    return out


async def about(world: World) -> tuple[Peer, tuple[Peer, ...], bool, bool, bool]:
    start = world.now()
    await world.sleep(0.002)
    world.event("note", step=3, text="hello")
    link = world.link(world.peers[1 - place(world)])
    return world.me, world.peers, world.numeric, world.now() - start >= 0.002, link.bandwidth_bytes_per_s > 0


# ---------------------------------------------------------------------------------------------------------- suite


class WorldSuite:
    def launch(self, program: Program, n: int, *, keep_going: bool = False) -> dict[Peer, Any]:
        raise NotImplementedError

    def results(self, program: Program, n: int, *, keep_going: bool = False) -> list[Any]:
        """Results in the order of the peers."""
        got = self.launch(program, n, keep_going=keep_going)
        return [got[peer] for peer in sorted(got)]

    def names(self, n: int) -> list[Peer]:
        return sorted(self.launch(about, n))

    def test_it_says_who_is_there(self) -> None:
        got = self.launch(about, 2)
        for peer, (me, peers, numeric, slept, linked) in got.items():
            assert me == peer
            assert peers == tuple(sorted(got))
            assert numeric and slept and linked

    def test_tags_can_be_taken_in_any_order(self) -> None:
        assert self.results(out_of_order, 2)[1] == [4, 3, 2, 1, 0]

    def test_messages_of_one_tag_keep_their_order(self) -> None:
        assert self.results(same_tag, 2)[1] == list(range(20))

    def test_everybody_may_send_before_receiving(self) -> None:
        """Case E4: no order of sends and receives can deadlock."""
        assert self.results(exchange, 4) == [6, 5, 4, 3]

    def test_first_come_first_served_serves_everybody_once(self) -> None:
        got = self.launch(first_come, 4)
        names = sorted(got)
        assert sorted(got[names[0]]) == names[1:]

    def test_recv_any_takes_what_matches(self) -> None:
        assert self.results(matching, 2)[1] == [3, 2, 1, 2]

    def test_arrived_messages_can_be_seen_and_dropped(self) -> None:
        assert self.results(look_and_discard, 2)[1] == ([0, 1, 2, 3, 4], 3, [3, 4])

    def test_a_deadline_names_peer_and_step(self) -> None:
        got = self.launch(partial(too_late, kind="recv"), 2)
        first, second = sorted(got)
        assert got[first] == ("Late", second, 7)

    def test_recv_any_has_a_deadline(self) -> None:
        assert self.results(partial(too_late, kind="recv_any"), 2)[0][0] == "Late"

    def test_a_late_message_is_not_lost(self) -> None:
        assert self.results(late_then_there, 2)[0] == 3

    def test_a_cancelled_take_eats_nothing(self) -> None:
        assert self.results(cancelled_take, 2)[0] == 3

    def test_a_peer_that_returned_is_lost_after_its_last_message(self) -> None:
        got = self.launch(returns_early, 2)
        first, second = sorted(got)
        assert got[first] == (5.0, second, 9)

    def test_recv_any_ends_when_nobody_is_left(self) -> None:
        got = self.launch(any_of_none, 3)
        first, *others = sorted(got)
        assert got[first] in others

    def test_a_failed_peer_is_named_with_its_error(self) -> None:
        got = self.launch(fails, 3, keep_going=True)
        first, second, third = sorted(got)
        assert isinstance(got[second], KeyError)
        for peer in (first, third):
            assert got[peer][0] == second
            assert "a planned mistake" in got[peer][1]
            assert "step 3" in got[peer][1]

    def test_the_first_failure_is_raised(self) -> None:
        with pytest.raises(KeyError, match="a planned mistake"):
            self.launch(fails, 2)

    def test_a_failing_task_fails_its_worker_at_once(self) -> None:
        first, second = self.results(failing_task, 2, keep_going=True)
        assert isinstance(second, ValueError)
        assert "a planned mistake in a task" in first

    def test_tasks_are_finished_before_a_worker_is(self) -> None:
        assert self.results(unawaited_task, 2)[1] == 8

    def test_marks_come_in_order_and_can_be_sent_on(self) -> None:
        first, second = self.results(marks, 2)
        assert first == [("block", n) for n in range(6)]
        assert second == [3.0 * n for n in range(6)]

    def test_a_computation_raises_where_it_is_awaited(self) -> None:
        assert self.results(exceptions, 1) == [["in run", "a", "in reach", "still alive"]]

    def test_a_lane_keeps_the_order_of_calls(self) -> None:
        assert self.results(one_lane, 1) == [list(range(10))]

    def test_equal_keys_give_equal_numbers_everywhere(self) -> None:
        expected = torch.rand(4, generator=torch.Generator().manual_seed(derive(SEED, "partner", 3, ("x", 1))))
        torch.manual_seed(derive(SEED, "forward", 3))
        mask = torch.nn.functional.dropout(torch.ones(64), 0.5)
        for drawn, dropped, other in self.results(numbers, 2):
            assert torch.equal(drawn, expected)
            assert torch.equal(dropped, mask)
            assert not torch.equal(dropped, other)

    @pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
    def test_a_sum_has_the_bits_of_the_ring(self, n: int) -> None:
        sizes = [0, 1, 2, 3, 5, 7, 64, 101]
        expected = [ring_sum([part(r, numel, torch.float32) for r in range(n)]) for numel in sizes]
        for got in self.results(partial(sums, sizes=sizes, dtype=torch.float32), n):
            for x, y in zip(got, expected, strict=True):
                assert torch.equal(x, y)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
    def test_a_sum_of_every_dtype(self, dtype: torch.dtype) -> None:
        expected = ring_sum([part(r, 17, dtype) for r in range(3)])
        for (got,) in self.results(partial(sums, sizes=[17], dtype=dtype), 3):
            assert torch.equal(got, expected)

    def test_a_sum_of_a_strided_tensor(self) -> None:
        expected = ring_sum([part(r, 12, torch.float32) for r in range(3)]).reshape(3, 4)
        for got in self.results(strided_sum, 3):
            assert torch.equal(got[:, ::2], expected)
            assert not got[:, 1::2].any()

    def test_groups_sum_apart(self) -> None:
        expected = [ring_sum([part(r, 9, torch.float64) for r in group]) for group in ((0, 1), (2, 3, 4))]
        for r, got in enumerate(self.results(group_sums, 5)):
            assert torch.equal(got, expected[r >= 2])

    def test_an_unequal_part_is_refused_by_name(self) -> None:
        got = self.launch(unequal_sum, 2)
        first, second = sorted(got)
        assert got[first] == second

    def test_tensors_of_every_kind_cross(self) -> None:
        got = self.results(kinds_of_tensors, 2)[1]
        for name, sent in SENT.items():
            assert got[name].dtype == sent.dtype, name
            assert got[name].shape == sent.shape, name
            assert not got[name].requires_grad
            assert torch.equal(got[name].nan_to_num(7.0), sent.detach().nan_to_num(7.0)), name

    def test_a_sent_tensor_may_be_written_when_send_returns(self) -> None:
        zeros, twos = self.results(snapshot, 2)
        assert torch.equal(zeros, torch.zeros(1000))
        assert torch.equal(twos, torch.full((1000,), 2.0))

    def test_a_wrong_shape_names_the_sender(self) -> None:
        """Case D9: another model on one peer is noticed at the first message."""
        got = self.launch(bad_shape, 2)
        first, second = sorted(got)
        assert got[second] == (first, 6)

    def test_bytes_are_counted_as_payloads_say(self) -> None:
        assert self.results(counters, 2) == [(100 + 32, 10 + 32), (10 + 32, 100 + 32)]

    def test_nonsense_addresses_are_refused(self) -> None:
        assert self.results(refused, 2) == [["refused", "refused"]] * 2
