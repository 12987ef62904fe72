// SPDX-License-Identifier: MIT
//
// The launchers of csrc/kernels/*.cu in a build without a GPU back end.
#include <c10/util/Exception.h>

#include "kernels/moe_batched.h"
#include "kernels/moe_routing.h"
#include "kernels/moe_sort.h"

namespace opreplay::kernels {
namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "opreplay was built without GPU kernels; build it with "
                              "OPREPLAY_GPU=CUDA or HIP against a torch for that device");
}

}  // namespace

void moe_batched_gpu(const MoeBatchedInput&, const MoeBatchedOutput&, int32_t*, void*) { refuse(); }
void moe_routing_gpu(const RoutingInput&, const RoutingOutput&, void*) { refuse(); }
int64_t moe_sort_workspace_gpu(const MoeSortInput&) { refuse(); }
void moe_sort_gpu(const MoeSortInput&, const MoeSortOutput&, int32_t*, void*) { refuse(); }

}  // namespace opreplay::kernels
