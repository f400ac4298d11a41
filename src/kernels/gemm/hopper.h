// PTX wrappers for Hopper's asynchronous units: TMA copies of boxes between global and shared memory, mbarriers that count the copied
// bytes, wgmma products of a warpgroup (four warps) on shared memory. For .cu files; sm_90a only.
//
// Boxes in shared memory use the 128-byte swizzle: rows of 128 bytes (64 bf16), in which the 16 bytes at column c of row r are stored at
// column c ^ (r % 8). So neither rows nor columns of 16 bytes have bank conflicts. A box begins at a multiple of 1,024 bytes.
#pragma once
#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>

namespace cairn::kernels::hopper {

__device__ inline uint32_t shared_address(const void* in_shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared)); }

// --- barriers, at addresses in shared memory ---

__device__ inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and lets the barrier wait for this many bytes of copies too.
__device__ inline void mbarrier_arrive_expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives at the barrier that has this address in another block of the cluster.
__device__ inline void mbarrier_arrive_remote(uint32_t barrier, uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
__device__ inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@over bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// --- copies of boxes ---

__device__ inline void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}
__device__ inline void tma_load(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
               "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier)
               : "memory");
}
// Multicast: into every block of the cluster whose bit is set in `blocks`, at the same address, for the barrier at the same address.
__device__ inline void tma_load_multicast(uint16_t blocks, uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::
          "r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
// Into the L2 cache.
__device__ inline void tma_prefetch(const CUtensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row)
               : "memory");
}
// Stores are grouped (tma_commit_group); elements out of bounds are dropped.
__device__ inline void tma_store(const CUtensorMap& map, int column, int row, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(reinterpret_cast<uint64_t>(&map)),
               "r"(column), "r"(row), "r"(from)
               : "memory");
}
__device__ inline void tma_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but the last kGroups groups of this thread have read what they store.
template <int kGroups>
__device__ void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}
template <int kGroups>
__device__ void tma_wait_stored() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
}
// Makes this thread's writes to shared memory visible to TMA and wgmma.
__device__ inline void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- products ---

// The wgmma descriptor of a matrix in shared memory. `far`: bytes per eight rows (or per eight K rows, where K runs down the columns);
// `wide`: in the latter case, bytes per 64 columns.
__device__ inline uint64_t wgmma_descriptor(uint32_t address, uint32_t wide, uint32_t far) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(wide >> 4) << 16 | static_cast<uint64_t>(far >> 4) << 32 |
         uint64_t{1} << 62;
}
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the last kGroups groups are done.
template <int kGroups>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// The accumulator registers as operands of an instruction.
#define CAIRN_OPERANDS_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define CAIRN_OPERANDS_16(i) CAIRN_OPERANDS_4(i), CAIRN_OPERANDS_4((i) + 4), CAIRN_OPERANDS_4((i) + 8), CAIRN_OPERANDS_4((i) + 12)
#define CAIRN_OPERANDS_64(i) CAIRN_OPERANDS_16(i), CAIRN_OPERANDS_16((i) + 16), CAIRN_OPERANDS_16((i) + 32), CAIRN_OPERANDS_16((i) + 48)
#define CAIRN_PLACES_64                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CAIRN_PLACES_128                                                                         \
  CAIRN_PLACES_64                                                                                \
  ", "                                                                                           \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d [64, 256] = a [64, 16] b [16, 256]; with `add` d += a b. The thread in warp w and lane l holds rows 16 w + l / 4 and that + 8 of d, and
// of every eight columns 2 (l % 4) and the next: d[4 j + 2 half + i] is column 8 j + 2 (l % 4) + i of its row `half`.
template <bool kByColumns /* b's rows are those of the sum */>
__device__ void wgmma(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" CAIRN_PLACES_128
      "}, %128, %129, add, 1, 1, 0, %131;\n"
      "}"
      : CAIRN_OPERANDS_64(0), CAIRN_OPERANDS_64(64)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kByColumns ? 1 : 0));
}

// The same for fp8 codes (e4m3), K = 32 at a time; both matrices are K-major. Accumulates with fewer bits (fast accumulation).
__device__ inline void wgmma_fp8(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" CAIRN_PLACES_128
      "}, %128, %129, add, 1, 1;\n"
      "}"
      : CAIRN_OPERANDS_64(0), CAIRN_OPERANDS_64(64)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// d [64, 128] = a [64, 16] b [16, 128]; with `add` d += a b.
template <bool kByColumns>
__device__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" CAIRN_PLACES_64
      "}, %64, %65, add, 1, 1, 0, %67;\n"
      "}"
      : CAIRN_OPERANDS_64(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kByColumns ? 1 : 0));
}

#undef CAIRN_OPERANDS_4
#undef CAIRN_OPERANDS_16
#undef CAIRN_OPERANDS_64
#undef CAIRN_PLACES_64
#undef CAIRN_PLACES_128

// --- fragments: 16 rows and 16 columns, four registers of two bf16 (rows 0-7, rows 8-15, then the same of columns 8-15) ---

__device__ inline void stmatrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ inline void ldmatrix(uint32_t address, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(address)
               : "memory");
}

// --- register reallocation between warpgroups ---

template <int kRegisters>
__device__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace cairn::kernels::hopper
