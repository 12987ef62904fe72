// SPDX-License-Identifier: MIT
//
// The launchers of csrc/kernels/*.cu in a build without a GPU back end.
#include <c10/util/Exception.h>

#include "kernels/block_table.h"
#include "kernels/fill_random.h"
#include "kernels/moe_batched.h"
#include "kernels/moe_routing.h"
#include "kernels/moe_sort.h"
#include "kernels/sequence_lengths.h"
#include "kernels/token_index.h"

namespace opreplay::kernels {
namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "opreplay was built without GPU kernels; build it with "
                              "OPREPLAY_GPU=CUDA or HIP against a torch for that device");
}

}  // namespace

void block_csr_gpu(
    int32_t*, int32_t*, const int32_t*, const BlockRequest&, const BlockPlan&, void*) {
  refuse();
}
void block_table_gpu(int32_t*, const int32_t*, const BlockRequest&, const BlockPlan&, void*) {
  refuse();
}
void draw_lengths_gpu(int32_t*, int64_t, const LengthDraw&, void*) { refuse(); }
void fill_random_gpu(void*, int64_t, RandomFormat, uint64_t, uint64_t, void*) { refuse(); }
void fill_random_integers_gpu(void*, int64_t, int, uint64_t, uint64_t, uint64_t, uint64_t, void*) {
  refuse();
}
void moe_batched_gpu(const MoeBatchedInput&, const MoeBatchedOutput&, int32_t*, void*) { refuse(); }
void moe_routing_gpu(const RoutingInput&, const RoutingOutput&, void*) { refuse(); }
int64_t moe_sort_workspace_gpu(const MoeSortInput&) { refuse(); }
void moe_sort_gpu(const MoeSortInput&, const MoeSortOutput&, int32_t*, void*) { refuse(); }
void query_starts_gpu(int32_t*, TokenStatus*, const TokenBatch&, void*) { refuse(); }
void ramp_lengths_gpu(int32_t*, int64_t, const LengthRamp&, void*) { refuse(); }
void request_slots_gpu(
    int32_t*, TokenStatus*, int64_t, const SlotTable&, const TokenBatch&, void*) {
  refuse();
}
void token_index_gpu(
    const IndexOutput&, int32_t*, TokenStatus*, const SlotTable&, const TokenBatch&, void*) {
  refuse();
}

}  // namespace opreplay::kernels
