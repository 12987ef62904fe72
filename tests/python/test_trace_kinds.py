"""Tests what the names of CPU events stand for."""

from __future__ import annotations

import pytest

from opreplay.trace import REASON_OF_KIND, classify


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "operator"),
        ("aten::__iand__", "operator"),
        ("_C::rms_norm", "operator"),
        ("_C_cache_ops::reshape_and_cache_flash", "operator"),
        ("vllm::rocm_unquantized_gemm", "operator"),
        ("aiter::fmha_v3_fwd", "operator"),
        ("prims::where", "operator"),
        ("aten::add.Tensor", "operator"),
        ("torchvision::nms", "operator"),
        ("vllm::unified_attention_with_output", "engine_context"),
        ("vllm::unified_kv_cache_update", "engine_context"),
        ("vllm::moe_forward", "engine_context"),
        ("vllm::moe_forward_shared", "engine_context"),
        ("sglang_profiler::rmsnorm_rmsnorm2d_fwd_109", "engine_context"),
        ("c10d::allreduce_", "collective"),
        ("_c10d_functional::all_reduce", "collective"),
        ("record_param_comms", "collective"),
        ("nccl:all_reduce", "collective"),
        ("vllm::all_reduce", "collective"),
        ("symm_mem::multimem_all_reduce_", "collective"),
        ("torch.distributed.ddp.reducer::copy_bucket_to_grad", "collective"),
        ("torch::distributed::reducer::mul_out", "collective"),
        ("triton_poi_fused_add_0", "triton"),
        ("Torch-Compiled Region: 0/0", "compiled_region"),
        ("TorchDynamo Cache Lookup", "compiled_region"),
        ("CompiledFunction", "compiled_region"),
        ("CompiledFunctionBackward", "compiled_region"),
        ("AOTDispatcher Runtime Wrapper Prologue", "compiled_region"),
        ("Pregraph bytecode", "compiled_region"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "autograd"),
        ("torch::autograd::AccumulateGrad", "autograd"),
        ("torch::jit::(anonymous namespace)::DifferentiableGraphBackward", "autograd"),
        ("AddmmBackward0", "autograd"),
        ("<backward op>", "autograd"),
        ("detach", "range"),
        ("ProfilerStep#5", "range"),
        ("Optimizer.step#SGD.step", "range"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "range"),
        ("LinearWithGradAccumulationFP8", "range"),
        ("", "range"),
        ("aten::mm extra", "range"),
    ],
)
def test_names_have_the_kind_that_their_form_tells(name, kind):
    assert classify(name) == kind


def test_only_an_operator_has_no_reason_to_be_skipped():
    assert [kind for kind, reason in REASON_OF_KIND.items() if reason is None] == ["operator"]
    assert REASON_OF_KIND["triton"] == "not_an_operator"
    assert REASON_OF_KIND["engine_context"] == "needs_engine_context"
