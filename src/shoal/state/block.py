"""A block: the flat piece of parameters that becomes ready, is agreed on, updated, sent and stored together.

Each block has one base tensor for its parameters and one for its gradient, and the model's parameters are views into
the first, so an update, a message or an average of the whole block is one operation. Views hide writes from autograd:
changing `x` between a forward and its backward pass would give wrong gradients without a word. So a block is *closed*
while passes may read it and *open* for its one writer afterwards, and it refuses to be stepped while closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from shoal.errors import Race, UserError
from shoal.plan import BlockSpec
from shoal.state.layout import DTYPES, Layout, gradient_dtype, local_shape, slice_key
from shoal.state.local_optimizer import LocalOptimizer, OptimizerFactory, Value
from shoal.world import Key, Owners

UPDATE_BYTES_PER_ELEMENT = 32.0
"""Memory traffic of an Adam-like update in float32: it reads four vectors and writes four."""


class Block:
    """Handed to a mixing. Tensors are touched only inside `World.run`, by one writer at a time.

    `x` holds the parameters and is what the next forward pass reads. `g` holds the sum of gradients over this worker's
    samples, scaled by a constant that is the same on all peers; `wire` is `g` followed by what must be summed with it:
    the weight (this worker's share of the step's samples, about 1.0) and, per parameter, the weight that used it. After
    `wire` was summed over peers, ``g / weight()`` is the mean gradient over all their samples.

    `g` has the parameters' dtype, or float32 where that has 16 bits. `mixing_state` is for vectors [numel] that a
    mixing must find again after a resume; they go into the checkpoint with the optimizer's.

    Args:
        params: the tensors of ``spec.slices``, in that order; their memory moves into the block, strides are kept.
        optimizer: builds the optimizer of the flat vector.
        update_bytes_per_element: memory traffic of one update, for the time it takes.

    Raises:
        UserError: a parameter differs from its slice in shape, dtype or device.
    """

    def __init__(
        self,
        spec: BlockSpec,
        owners: Owners,
        params: Sequence[nn.Parameter],
        optimizer: OptimizerFactory,
        *,
        update_bytes_per_element: float = UPDATE_BYTES_PER_ELEMENT,
    ) -> None:
        _check_params(spec, params)
        self._lay_out(spec, owners, params[0].device, update_bytes_per_element)
        self._strides = [_strides(p) for p in params]
        for k, p in enumerate(params):
            self._adopt(k, p)
        self._local = LocalOptimizer(self.x, self.layout, optimizer)
        self._used = [False] * len(params)
        self._sum = self.g.new_zeros(())

    @classmethod
    def shape_only(
        cls, spec: BlockSpec, owners: Owners, *, update_bytes_per_element: float = UPDATE_BYTES_PER_ELEMENT
    ) -> Block:
        """A block for timing mode: sizes and meta tensors, no values, no optimizer."""
        block = cls.__new__(cls)
        block._lay_out(spec, owners, torch.device("meta"), update_bytes_per_element)
        return block

    def _lay_out(self, spec: BlockSpec, owners: Owners, device: torch.device, update_bytes_per_element: float) -> None:
        dtype = DTYPES[spec.dtype]
        self.key: Key = (spec.name,)
        self.spec, self.owners, self.layout = spec, owners, Layout.of(spec)
        self.numel = self.layout.numel
        self.x = torch.zeros(self.numel, dtype=dtype, device=device)  # [numel]
        self.wire = torch.zeros(self.numel + 1 + len(spec.slices), dtype=gradient_dtype(dtype), device=device)
        self.g = self.wire[: self.numel]  # [numel]
        self.nbytes = self.numel * self.x.element_size()  # of `x` on the wire
        self.wire_nbytes = self.wire.numel() * self.wire.element_size()
        self.update_bytes = self.numel * update_bytes_per_element
        self.mixing_state: dict[str, Tensor] = {}
        self.heard: Callable[[Block, int], None] | None = None  # told of every gradient; see `Watch`
        self._open = True
        self._version = 0

    def _adopt(self, k: int, p: nn.Parameter) -> None:
        """Move parameter `k` into the block and have its gradient accumulate in `g`."""
        view = self._view(self.x, k)
        view.copy_(p.detach())
        p.data = view
        gradient = self._view(self.g, k)
        p.grad = gradient if p.dtype == gradient.dtype else None
        p.register_post_accumulate_grad_hook(partial(self._accept, k, gradient))

    def _view(self, flat: Tensor, k: int) -> Tensor:
        """Parameter `k`'s part of `flat` [numel], in the parameter's own shape and strides."""
        return flat.as_strided(local_shape(self.spec.slices[k]), self._strides[k], self.layout.starts[k])

    def _accept(self, k: int, gradient: Tensor, p: Tensor) -> None:
        """Autograd has added to ``p.grad``. Bring it home if it is not the block's own memory, and note the use."""
        found = p.grad
        assert found is not None
        if found is not gradient:
            if found.grad_fn is not None:
                raise UserError(
                    f"backward(create_graph=True) reached parameter {self.spec.slices[k].name!r}",
                    key="model.loss",
                    mend="use torch.autograd.grad for the inner gradient",
                )
            gradient.add_(found.to_dense() if found.is_sparse else found)
            p.grad = gradient if p.dtype == gradient.dtype else None
        self._used[k] = True
        if self.heard is not None:
            self.heard(self, k)

    def close(self) -> None:
        """From now on forward and backward passes may read `x`; nobody writes it until `seal`."""
        self._open = False
        self._version = self.x._version

    def seal(self, weight: float) -> None:
        """The gradient is complete: write the weight and the use counts into `wire`, and open the block.

        Raises:
            Race: somebody wrote `x` while passes could read it.
        """
        if not self._open and self.x._version != self._version:
            raise Race(f"{self.spec.name}: parameters were written during a forward or backward pass")
        tail = [weight, *(weight if used else 0.0 for used in self._used)]
        self.wire[self.numel :].copy_(torch.tensor(tail, dtype=self.wire.dtype))
        self._used = [False] * len(self._used)
        self._sum = self.g.sum()  # of my own gradient, before a reduction overwrites it
        self._open = True

    def weight(self) -> float:
        """The weight in `wire`: mine after `seal`, the sum over peers after a reduction."""
        return float(self.wire[self.numel])

    def square_norm(self) -> float:
        """Sum of squares of the mean gradient ``g / weight()``; NaN or infinite exactly if the gradient is."""
        weight = self.weight()
        if weight == 0.0:
            return 0.0
        norm = float(torch.linalg.vector_norm(self.g))
        if norm == float("inf"):  # the squares may have overflowed in float32
            norm = float(torch.linalg.vector_norm(self.g, dtype=torch.float64))
        mean = norm / weight
        return mean * mean

    def own_gradient_finite(self) -> bool:
        """Was this worker's own gradient finite when it was sealed, whatever a reduction added to it since?"""
        return bool(self._sum.isfinite())

    def step(self, base: Tensor | None = None, scale: float = 1.0) -> None:
        """``x <- base`` (if given), then the local optimizer's step with gradient ``scale * g / weight()``, in place;
        then `wire` is zero. A scale of 0.0 means: leave the gradient out (``x <- base`` only).

        A parameter that nobody used keeps its value and its optimizer state, weight decay and momentum included.

        Raises:
            Race: the block is closed.
        """
        if not self._open:
            raise Race(f"{self.spec.name}: stepped while a forward or backward pass may read it")
        with torch.no_grad():
            if base is not None:
                self.x.copy_(base)
            weight, *uses = self.wire[self.numel :].tolist()
            if scale != 0.0 and any(uses):
                factor = scale / weight
                if factor != 1.0:
                    self.g.mul_(factor)
                self._local.step(self.g, [use > 0.0 for use in uses])
            self.wire.zero_()

    @property
    def lr(self) -> float:
        """The optimizer's learning rate, set by the worker before each step."""
        return self._local.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._local.lr = lr

    def state(self) -> dict[str, dict[str, Value]]:
        """What must be kept, per parameter: slice name → field → value.

        Fields are ``"model"``, ``"optimizer.NAME"`` and ``"mixing.NAME"``. Vectors have the parameter's shape, so that
        another layout, bucket size or memory format can read them. Views, not copies: use them before the next step.
        """
        out: dict[str, dict[str, Value]] = {}
        for k, (piece, state) in enumerate(zip(self.spec.slices, self._local.export(), strict=True)):
            fields: dict[str, Value] = {"model": self._view(self.x, k)}
            for name, value in state.items():
                fields[f"optimizer.{name}"] = self._shaped(k, value) if _is_vector(value) else value
            for name, vector in self.mixing_state.items():
                fields[f"mixing.{name}"] = self._view(vector, k)
            out[slice_key(piece)] = fields
        return out

    def pieces(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Views of `flat` [numel], a vector like `x`, by parameter: (name, tensor in the parameter's shape)."""
        for k, piece in enumerate(self.spec.slices):
            yield piece.name, self._view(flat, k)

    def load(self, state: Mapping[str, Mapping[str, Value]]) -> None:
        """Take over what `state` gave, for exactly this block's slices. Values are copied.

        Raises:
            UserError: a field is missing for one parameter, has another shape, or is not a block's.
        """
        local: list[dict[str, Value]] = [{} for _ in self.spec.slices]
        mixing: dict[str, Tensor] = {}
        with torch.no_grad():
            for k, piece in enumerate(self.spec.slices):
                for field, value in state[slice_key(piece)].items():
                    kind, _, name = field.partition(".")
                    if kind == "optimizer" and name:
                        local[k][name] = self._flattened(k, value) if _is_vector(value) else value
                    elif kind == "mixing" and name:
                        self._write(mixing.setdefault(name, torch.zeros_like(self.x)), k, value)
                    elif field == "model":
                        self._write(self.x, k, value)
                    else:
                        raise UserError(f"checkpoint: {piece.name}: unknown field", value=field)
            _check_fields(self.spec, local)
            self._local.restore(local)
        self.mixing_state = mixing

    def _shaped(self, k: int, vector: Value) -> Tensor:
        """A state vector [size] in the shape of parameter `k`; a number's has shape (1,), to tell it from a scalar."""
        assert isinstance(vector, Tensor)
        return vector.as_strided(local_shape(self.spec.slices[k]) or (1,), self._strides[k] or (1,))

    def _flattened(self, k: int, value: Value) -> Tensor:
        """The vector of parameter `k` in the block's memory order."""
        assert isinstance(value, Tensor)
        self._check_shape(k, value, local_shape(self.spec.slices[k]) or (1,))
        out = torch.empty(self.layout.sizes[k], dtype=value.dtype, device=self.x.device)
        self._shaped(k, out).copy_(value)
        return out

    def _write(self, flat: Tensor, k: int, value: Value) -> None:
        assert isinstance(value, Tensor)
        self._check_shape(k, value, local_shape(self.spec.slices[k]))
        self._view(flat, k).copy_(value)

    def _check_shape(self, k: int, value: Tensor, shape: tuple[int, ...]) -> None:
        if tuple(value.shape) != shape:
            raise UserError(
                f"checkpoint: {self.spec.slices[k].name}: shape {tuple(value.shape)}, this model has {shape}",
                mend="resume with the model that was saved",
            )


def make_blocks(
    model: nn.Module,
    specs: Sequence[BlockSpec],
    owners: Owners,
    optimizer: Callable[[nn.Parameter, bool], torch.optim.Optimizer],
    *,
    update_bytes_per_element: float = UPDATE_BYTES_PER_ELEMENT,
) -> list[Block]:
    """Move the trainable parameters of `model` into blocks, one per spec, in that order.

    A parameter that is a slice of a larger one must have the slice's shape here. Gradients of
    ``nn.Embedding(sparse=True)`` are accumulated densely.

    Args:
        optimizer: ``optimizer(flat, decay)`` builds a block's optimizer, with weight decay if `decay`.

    Raises:
        UserError: the specs do not cover the trainable parameters exactly once, or differ from them.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    named = Counter(piece.name for spec in specs for piece in spec.slices)
    for name, times in named.items():
        if name not in trainable or times > 1:
            why = "more than one block holds parameter" if name in trainable else "the plan holds an unknown parameter"
            raise UserError(why, value=name, mend="make the plan from this model")
    for name in trainable:
        if name not in named:
            raise UserError("no block holds parameter", value=name, mend="make the plan from this model")
    return [
        Block(
            spec,
            owners,
            [trainable[piece.name] for piece in spec.slices],
            lambda flat, decay=spec.decay: optimizer(flat, decay),
            update_bytes_per_element=update_bytes_per_element,
        )
        for spec in specs
    ]


def _check_params(spec: BlockSpec, params: Sequence[nn.Parameter]) -> None:
    for piece, p in zip(spec.slices, params, strict=True):
        if tuple(p.shape) != local_shape(piece) or p.dtype != DTYPES[piece.dtype] or piece.dtype != spec.dtype:
            raise UserError(
                f"parameter {piece.name!r} is {tuple(p.shape)} {p.dtype}; "
                f"the plan says {local_shape(piece)} {piece.dtype} in a block of {spec.dtype}",
                mend="make the plan from this model",
            )
        if p.device != params[0].device:
            raise UserError(
                f"parameter {piece.name!r} is on {p.device}, others of its block on {params[0].device}",
                mend="put the model on one device",
            )


def _check_fields(spec: BlockSpec, states: Sequence[Mapping[str, Value]]) -> None:
    """A parameter has no optimizer state (it was never used) or all that the others have."""
    expected = set().union(*states)
    for piece, state in zip(spec.slices, states, strict=True):
        missing = sorted(expected - state.keys())
        if state and missing:
            raise UserError(f"checkpoint: {piece.name}: no optimizer state {missing[0]!r}")


def _strides(p: Tensor) -> tuple[int, ...]:
    """The strides that `p` keeps inside a block: its own if it is dense in memory, else contiguous ones."""
    return torch.empty_like(p, device="meta", memory_format=torch.preserve_format).stride()


def _is_vector(value: Value) -> bool:
    """A parameter's vector, as opposed to a step count."""
    return isinstance(value, Tensor) and value.ndim > 0
