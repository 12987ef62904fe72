"""Matrices that can be factored and solved with: symmetric, positive definite, well conditioned."""

from __future__ import annotations

import torch

from opreplay.recipes.call import InputTensor, RecipeCall
from opreplay.recipes.registry import recipe

__all__: list[str] = []


def _write_positive_definite(matrix: InputTensor) -> None:
    """Adds the order of the matrix to the diagonal of a symmetric random one.

    Every row then outweighs the sum of its other elements, so that the eigenvalues are positive
    and no pivoting is needed.
    """
    random = matrix.value.clone()
    if random.dim() < 2 or random.size(-1) != random.size(-2):
        return
    symmetric = (random + random.mH) / 2
    symmetric.diagonal(dim1=-2, dim2=-1).add_(random.size(-1))
    matrix.write(symmetric)


@recipe(
    "aten::cholesky",
    "aten::cholesky_inverse",
    "aten::cholesky_solve",
    "aten::_cholesky_solve_helper",
    "aten::det",
    "aten::inverse",
    "aten::_linalg_det",
    "aten::_linalg_slogdet",
    "aten::_linalg_solve_ex",
    "aten::linalg_cholesky",
    "aten::linalg_cholesky_ex",
    "aten::linalg_det",
    "aten::linalg_inv",
    "aten::linalg_inv_ex",
    "aten::linalg_ldl_factor",
    "aten::linalg_ldl_factor_ex",
    "aten::linalg_matrix_power",
    "aten::linalg_slogdet",
    "aten::linalg_solve",
    "aten::linalg_solve_ex",
    "aten::linalg_solve_triangular",
    "aten::linalg_tensorsolve",
    "aten::logdet",
    "aten::matrix_power",
    "aten::slogdet",
    "aten::triangular_solve",
    "aten::linalg_cond",
    "aten::linalg_lu_factor",
    "aten::linalg_lu_factor_ex",
)
def positive_definite(call: RecipeCall) -> str:
    """The matrix is symmetric and positive definite; a triangle of it is well conditioned too."""
    # cholesky_solve and triangular_solve take the right-hand side first.
    names = {
        "aten::cholesky_solve": "input2",
        "aten::_cholesky_solve_helper": "A",
        "aten::triangular_solve": "A",
    }
    name = names.get(call.op) or next(n for n in ("A", "input", "self") if n in call.names)
    _write_positive_definite(call.tensor(name))
    return f"{name} symmetric, positive definite"


@recipe("aten::_linalg_check_errors")
def check_errors(call: RecipeCall) -> str:
    """The factorization that is asked about went well."""
    info = call.tensor("info")
    info.write(torch.zeros_like(info.unfilled))
    return "info is 0: no error"


@recipe("aten::linalg_tensorinv")
def tensorinv(call: RecipeCall) -> str:
    """The tensor, seen as a matrix of its first `ind` dimensions, can be inverted."""
    tensor = call.tensor("self")
    rows = torch.Size(tensor.dims[: call.value("ind")]).numel()
    matrix = tensor.value.reshape(rows, -1).clone()
    matrix.diagonal().add_(rows)
    tensor.write(matrix.view(tensor.dims))
    return "self diagonally dominant as a matrix"


@recipe("aten::linalg_lu_solve", "aten::linalg_ldl_solve", "aten::lu_solve", "aten::lu_unpack")
def factored(call: RecipeCall) -> str:
    """The factors are well conditioned, and no row is exchanged."""
    factors = next(name for name in ("LU", "LD", "LU_data") if name in call.names)
    pivots = next(name for name in ("pivots", "LU_pivots") if name in call.names)
    _write_positive_definite(call.tensor(factors))
    rows = call.tensor(pivots)
    count = rows.dims[-1] if rows.dims else 1
    order = torch.arange(1, count + 1, dtype=rows.dtype, device=rows.device)
    rows.write(order.expand(rows.dims))
    return f"{factors} well conditioned, {pivots} in order"
