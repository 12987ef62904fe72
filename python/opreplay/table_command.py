"""The command ``opreplay tables``: sizes come in by arguments or off a trace, a table goes out.

Importing this module imports neither torch nor the extension, so that a parser is made quickly.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console

if TYPE_CHECKING:
    from torch import Tensor

    from opreplay.trace.call import RecordedCall

__all__ = ["add_arguments", "main"]


@dataclasses.dataclass(frozen=True, slots=True)
class _Built:
    """What a command makes: tensors by name, and what to print of them."""

    tensors: dict[str, Tensor]
    stats: tuple[Any, ...]


_Build: TypeAlias = Callable[[argparse.Namespace], _Built]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands ``block`` and ``moe``."""
    kinds = parser.add_subparsers(title="tables", metavar="KIND", required=True)
    block = kinds.add_parser("block", help="block table of a paged KV cache")
    block.set_defaults(build=_build_block)
    _add_block_arguments(block)
    moe = kinds.add_parser("moe", help="routing of tokens to experts, and a sorted table")
    moe.set_defaults(build=_build_moe)
    _add_moe_arguments(moe)
    for kind in (block, moe):
        kind.add_argument("--seed", type=int, default=0, help="default: 0")
        kind.add_argument("--device", default="cpu", metavar="DEV", help="default: cpu")
        kind.add_argument(
            *("-o", "--output"), type=Path, metavar="FILE", help="write the tensors: .npz or .pt"
        )
        recorded = kind.add_argument_group("sizes of a recorded call")
        recorded.add_argument("--from", dest="trace", metavar="TRACE", help="trace file")
        recorded.add_argument(
            "--call", type=int, default=0, metavar="N", help="its N-th call, from 0 (default: 0)"
        )
        recorded.add_argument("--op", metavar="NAME", help="count only calls of this operator")


def main(arguments: argparse.Namespace) -> int:
    """Builds and prints one table, and writes it if asked to; returns the exit status.

    Raises:
        ValueError: sizes are missing or impossible, or the file's suffix is unknown.
    """
    output: Path | None = arguments.output
    if output is not None and output.suffix not in _WRITERS:
        raise ValueError(f"{output}: expected a name that ends in {' or '.join(_WRITERS)}")
    build: _Build = arguments.build
    begin = time.perf_counter()
    built = build(arguments)
    elapsed_ms = (time.perf_counter() - begin) * 1e3

    console = Console(highlight=False)
    for name, tensor in built.tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        console.print(f"{name:24} {dtype} {list(tensor.shape)}", markup=False)
    for stats in built.stats:
        for name, value in _shown(stats):
            console.print(f"  {name:22} {value}", markup=False)
    console.print(f"built in {elapsed_ms:.2f} ms on {arguments.device}")
    if output is not None:
        _WRITERS[output.suffix](output, built.tensors)
        console.print(f"wrote {output}", markup=False, soft_wrap=True)
    return 0


def _add_block_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seqs", type=int, metavar="B", help="sequences")
    parser.add_argument("--blocks", type=int, metavar="N", help="blocks of the pool")
    parser.add_argument("--block-size", type=int, default=16, metavar="T", help="tokens of a block")
    parser.add_argument("--width", type=int, metavar="W", help="columns of the table")
    parser.add_argument(
        "--form", choices=["dense", "csr", "tokens"], default="dense",
        help="dense [B, W], compressed rows, or a slot for each token (default: dense)",
    )  # fmt: skip
    parser.add_argument(
        "--order", choices=["permuted", "contiguous", "strided"], default="permuted"
    )
    parser.add_argument("--reserve-block-zero", action="store_true", help="do not hand out block 0")
    parser.add_argument(
        "--shared-prefix-blocks", type=int, default=0, metavar="N",
        help="leading blocks that all sequences share",
    )  # fmt: skip
    parser.add_argument(
        "--on-exhausted", choices=["error", "shrink_lengths", "share"], default="error",
        help="when the pool is too small (default: error)",
    )  # fmt: skip
    lengths = parser.add_argument_group("lengths of sequences")
    lengths.add_argument("--kind", choices=["constant", "uniform", "zipf"], default="uniform")
    lengths.add_argument("--low", type=int, default=1, metavar="LEN", help="default: 1")
    lengths.add_argument(
        "--high", type=int, metavar="LEN", help="default: what the width and the pool hold"
    )
    lengths.add_argument("--s", type=float, default=1.0, help="exponent of zipf (default: 1)")
    lengths.add_argument("--total", type=int, metavar="SUM", help="of all lengths")
    lengths.add_argument("--total-squares", type=int, metavar="SUM", help="of their squares")
    lengths.add_argument("--maximum", type=int, metavar="LEN", help="longest length")
    parser.add_argument(
        "--table-argument", type=int, metavar="I",
        help="with --from: position of the block table, whose dims are [B, W]",
    )  # fmt: skip
    parser.add_argument(
        "--cache-argument", type=int, metavar="I",
        help="with --from: position of a cache, whose first dim is the number of blocks",
    )  # fmt: skip


def _add_moe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, metavar="M")
    parser.add_argument("--top-k", type=int, metavar="K", help="experts of a token")
    parser.add_argument("--experts", type=int, metavar="E")
    parser.add_argument(
        "--distribution", default="uniform",
        choices=["uniform", "zipf", "hot", "balanced", "histogram", "power_law", "one_hot"],
    )  # fmt: skip
    parser.add_argument("--s", type=float, default=1.0, help="exponent of zipf (default: 1)")
    parser.add_argument("--alpha", type=float, default=1.01, help="exponent of power_law")
    parser.add_argument("--hot", type=int, default=0, metavar="N", help="active experts of hot")
    parser.add_argument("--histogram", metavar="FILE", help="loads of experts: JSON, CSV or npz")
    parser.add_argument("--ranks", type=int, default=1, help="expert-parallel ranks (default: 1)")
    parser.add_argument(
        "--groups", type=int, nargs=2, metavar=("GROUPS", "CHOSEN"),
        help="a token's experts come from CHOSEN of GROUPS groups",
    )  # fmt: skip
    parser.add_argument("--shared-experts", type=int, default=0, metavar="N")
    parser.add_argument(
        "--layout", choices=["none", "align", "sorting", "grouped"], default="align",
        help="of the sorted table: vLLM and SGLang, aiter and CK, grouped GEMM (default: align)",
    )  # fmt: skip
    parser.add_argument("--block-size", type=int, default=64, metavar="ROWS", help="default: 64")
    parser.add_argument(
        "--ids-argument", type=int, metavar="I",
        help="with --from: position of topk_ids, whose dims are [M, K]",
    )  # fmt: skip
    parser.add_argument(
        "--weights-argument", type=int, metavar="I",
        help="with --from: position of expert weights, whose first dim is E",
    )  # fmt: skip


def _build_block(arguments: argparse.Namespace) -> _Built:
    from opreplay.tables import block_csr, block_table, req_to_token, seq_lens

    call = _recorded_call(arguments)
    table_dims = _dims(call, arguments.table_argument, count=2)
    cache_dims = _dims(call, arguments.cache_argument)
    num_seqs = _given("--seqs", arguments.seqs, table_dims, 0)
    width = arguments.width if table_dims is None else arguments.width or table_dims[1]
    num_blocks = _given("--blocks", arguments.blocks, cache_dims, 0)
    block_size: int = arguments.block_size

    pool = num_blocks - int(arguments.reserve_block_zero)
    most = max(1, pool // max(1, num_seqs)) * block_size
    lens = seq_lens(
        num_seqs,
        kind=arguments.kind,
        low=arguments.low,
        high=arguments.high or min(most, most if width is None else width * block_size),
        s=arguments.s,
        total=arguments.total,
        total_squares=arguments.total_squares,
        maximum=arguments.maximum,
        seed=arguments.seed,
        device=arguments.device,
    )
    options: dict[str, Any] = {
        "order": arguments.order,
        "reserve_block_zero": arguments.reserve_block_zero,
        "shared_prefix_blocks": arguments.shared_prefix_blocks,
        "on_exhausted": arguments.on_exhausted,
        "seed": arguments.seed,
    }
    if arguments.form == "csr":
        csr = block_csr(lens, block_size, num_blocks, **options)
        tensors = _tensors(csr, "kv_indptr", "kv_indices", "kv_last_page_len", "seq_lens")
        return _Built(tensors, (csr.stats(),))
    dense = block_table(lens, block_size, num_blocks, width=width, **options)
    tensors = {"block_table": dense.table, "seq_lens": dense.seq_lens}
    if arguments.form == "tokens":
        tensors["req_to_token"] = req_to_token(dense.table, dense.seq_lens, block_size)
    return _Built(tensors, (dense.stats(),))


def _build_moe(arguments: argparse.Namespace) -> _Built:
    from opreplay.tables import grouped_gemm, moe_align_block_size, moe_sorting, topk_routing

    call = _recorded_call(arguments)
    ids_dims = _dims(call, arguments.ids_argument, count=2)
    weights_dims = _dims(call, arguments.weights_argument)
    routing = topk_routing(
        _given("--tokens", arguments.tokens, ids_dims, 0),
        _given("--experts", arguments.experts, weights_dims, 0),
        _given("--top-k", arguments.top_k, ids_dims, 1),
        distribution=arguments.distribution,
        s=arguments.s,
        alpha=arguments.alpha,
        hot=arguments.hot,
        histogram=arguments.histogram,
        ranks=arguments.ranks,
        groups=None if arguments.groups is None else tuple(arguments.groups),
        shared_experts=arguments.shared_experts,
        seed=arguments.seed,
        device=arguments.device,
    )
    tensors = _tensors(routing, "topk_ids", "topk_weights")
    ids, experts, size = routing.topk_ids, routing.num_experts, arguments.block_size
    if arguments.layout == "none":
        return _Built(tensors, (routing.stats(ranks=arguments.ranks),))
    table: Any
    if arguments.layout == "align":
        table = moe_align_block_size(ids, experts, size)
        names: tuple[str, ...] = ("sorted_token_ids", "expert_ids", "num_tokens_post_padded")
    elif arguments.layout == "sorting":
        table = moe_sorting(ids, routing.topk_weights, experts, size)
        names = ("sorted_ids", "sorted_weights", "sorted_expert_ids", "num_valid_ids")
    else:
        table = grouped_gemm(ids, experts)
        names = (
            *("offsets_inclusive", "offsets_exclusive"),
            *("permutation", "inverse", "tokens_per_expert"),
        )
    return _Built(tensors | _tensors(table, *names), (table.stats(ranks=arguments.ranks),))


def _recorded_call(arguments: argparse.Namespace) -> RecordedCall | None:
    if arguments.trace is None:
        return None
    from opreplay.trace import read_trace

    number: int = arguments.call
    if number < 0:
        raise ValueError(f"expected --call >= 0, got {number}")
    calls = read_trace(arguments.trace).calls(op=arguments.op)
    call = next(islice(calls, number, None), None)
    if call is None:
        of = f" of {arguments.op}" if arguments.op else ""
        raise ValueError(f"{arguments.trace}: there is no call {number}{of}")
    return call


def _dims(
    call: RecordedCall | None, position: int | None, *, count: int | None = None
) -> tuple[int, ...] | None:
    """Sizes of an argument of the recorded call; None where none is asked for."""
    if position is None:
        return None
    if call is None:
        raise ValueError(f"argument {position} is of a recorded call: give --from TRACE too")
    recorded = call.arguments or ()
    dims = recorded[position].dims if 0 <= position < len(recorded) else ()
    sizes = tuple(size for size in dims if isinstance(size, int))
    if not sizes or (count is not None and len(sizes) != count):
        wanted = "a tensor" if count is None else f"a tensor of {count} dims"
        raise ValueError(f"{call.name}: argument {position} is not {wanted}, got dims {list(dims)}")
    return sizes


def _given(option: str, value: int | None, dims: tuple[int, ...] | None, index: int) -> int:
    if value is not None:
        return value
    if dims is None:
        raise ValueError(f"{option} is missing: give it, or --from TRACE and the argument it is of")
    return dims[index]


def _tensors(result: Any, *names: str) -> dict[str, Tensor]:
    return {name: getattr(result, name) for name in names}


def _shown(stats: Any) -> list[tuple[str, str]]:
    """Fields and properties of a statistics object, by their names."""
    names = [field.name for field in dataclasses.fields(stats)]
    names += [name for name, member in vars(type(stats)).items() if isinstance(member, property)]
    values = [(name.replace("_", " "), getattr(stats, name)) for name in names]
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in values
    ]


def _write_npz(path: Path, tensors: dict[str, Tensor]) -> None:
    import numpy as np

    arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    np.savez(path, **arrays)


def _write_pt(path: Path, tensors: dict[str, Tensor]) -> None:
    import torch

    torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, path)


_WRITERS: dict[str, Callable[[Path, dict[str, Tensor]], None]] = {
    ".npz": _write_npz,
    ".pt": _write_pt,
}
