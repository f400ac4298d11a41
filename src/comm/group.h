#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/dtype.h"
#include "comm/label.h"
#include "comm/work.h"

namespace at {
class Tensor;
}

namespace cairn::comm {

class AffineMap;
class Codec;
class World;

// A typed buffer. The caller owns it and keeps it valid until the operation on it is done.
struct Span {
  void* data = nullptr;
  int64_t count = 0;
  Dtype dtype = Dtype::f32;
  // For device memory: returns the caller's current stream (a cudaStream_t) of that device. Null: host memory. Device memory needs a
  // transport with device-to-device communication (nccl/transport.h).
  void* (*stream)(int device) = nullptr;
};

// How an all_scan runs.
struct ScanOptions {
  bool backward = false;  // from the last rank to the first
  int64_t blocks = 0;     // pipelined blocks of the state; 0: by the links (collectives/choose_algorithm.h)
};

// The record of one operation; the group keeps the last ones.
struct OperationRecord {
  uint64_t sequence = 0;
  std::string name;  // "all_reduce of layers.7.mlp.up_proj, 4096 f32"
  Purpose purpose = Purpose::control;
  std::chrono::nanoseconds begun{};
  std::chrono::nanoseconds ended{};  // zero: in flight
  bool failed = false;
};

// An ordered subset of the world's ranks, with collectives and point-to-point operations (a process group, a communicator). It belongs to
// its World; only the World's thread may use it.
//
// - A call starts an operation and returns its Work. Operations complete in the order of their start.
// - All ranks of a group must start the same collectives in the same order. A rank that does not is found and named.
// - The result of a collective is bitwise identical on all ranks, whatever the order of arrival.
// - An operation that is not done within the group's deadline fails and names the late ranks. After a failure the group is broken: every
//   later operation throws the same error.
// - Ranks are positions in the group. Counts are in elements, one per rank of the group; empty: `even_counts`.
// - Tensors must be contiguous. CUDA tensors travel from device to device if the transport can (nccl/transport.h): the operation is ordered
//   after the current stream, and Work::wait() makes the current stream wait. Otherwise, and in coded_all_reduce, they travel through
//   pinned host memory.
class Group {
 public:
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  const std::vector<int>& ranks() const;  // the members' world ranks, in order
  World& world() const;

  // x becomes the reduction of all ranks' x. Up to 8 ranks it is in rank order, and each rank sends 2(n-1)/n of x;
  // collectives/choose_algorithm.h has the rest.
  Work all_reduce(Span x, Reduce reduce, Label label);
  // x (f32) becomes the sum of all ranks' x, compressed on the network (collectives/coded_all_reduce.h). The codec is one of make_codec; it
  // need not outlive the call.
  Work coded_all_reduce(Span x, const Codec& codec, Label label);
  // The root's x becomes the reduction of all ranks' x, in rank order; x of other ranks stays unchanged.
  Work reduce(Span x, int root, Reduce reduce, Label label);
  // x becomes the root's x.
  Work broadcast(Span x, int root, Label label);
  // out becomes the concatenation of all ranks' `in`. `in` may be this rank's part of `out`.
  Work all_gather(Span out, Span in, Label label, std::vector<int64_t> counts = {});
  // out becomes this rank's part of the reduction of all ranks' `in`. `out` may be this rank's part of `in`.
  Work reduce_scatter(Span out, Span in, Reduce reduce, Label label, std::vector<int64_t> counts = {});
  // The root's out becomes the concatenation of all ranks' `in`; out of other ranks is not used.
  Work gather(Span out, Span in, int root, Label label, std::vector<int64_t> counts = {});
  // out becomes this rank's part of the root's `in`.
  Work scatter(Span out, Span in, int root, Label label, std::vector<int64_t> counts = {});
  // Part i of `in` (in_counts[i] elements) goes to rank i; out becomes the parts for this rank, in rank order. Empty counts: even.
  Work all_to_all(Span out, Span in, Label label, std::vector<int64_t> out_counts = {}, std::vector<int64_t> in_counts = {});
  // A scan of affine maps along the ranks (collectives/all_scan.cpp). Before it, `state` is what this rank adds; after it, `before` is the
  // state that comes in from the ranks before this one (zero at the first), and `state` the one that leaves: map(before) + state. A rank
  // sends one state to the next one and nothing else. f32 or f64; with a `before` of bf16, states of f32 travel as bf16.
  Work all_scan(Span before, Span state, std::shared_ptr<const AffineMap> map, ScanOptions options, Label label);
  // The k-th send to a peer matches its k-th recv from this rank. Not a collective: other ranks take no part.
  Work send(Span x, int peer, Label label);
  Work recv(Span x, int peer, Label label);
  // Done when all ranks have called it.
  Work barrier(std::string_view what = "");

  Work all_reduce(const at::Tensor& x, Reduce reduce, Label label);
  Work coded_all_reduce(const at::Tensor& x, const Codec& codec, Label label);
  Work reduce(const at::Tensor& x, int root, Reduce reduce, Label label);
  Work broadcast(const at::Tensor& x, int root, Label label);
  Work all_gather(const at::Tensor& out, const at::Tensor& in, Label label, std::vector<int64_t> counts = {});
  Work reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduce reduce, Label label, std::vector<int64_t> counts = {});
  // `out` of gather and `in` of scatter may be undefined, except at the root.
  Work gather(const at::Tensor& out, const at::Tensor& in, int root, Label label, std::vector<int64_t> counts = {});
  Work scatter(const at::Tensor& out, const at::Tensor& in, int root, Label label, std::vector<int64_t> counts = {});
  Work all_to_all(const at::Tensor& out, const at::Tensor& in, Label label, std::vector<int64_t> out_counts = {},
                  std::vector<int64_t> in_counts = {});
  // With a diagonal map: state [..., rows, width] (before too), factors [..., rows]. CUDA tensors travel through pinned host memory.
  Work all_scan(const at::Tensor& before, const at::Tensor& state, const at::Tensor& factors, ScanOptions options, Label label);
  Work send(const at::Tensor& x, int peer, Label label);
  Work recv(const at::Tensor& x, int peer, Label label);

  // Makes progress without waiting. Call it now and then while computing: communication overlaps without a progress thread.
  void progress();

  // Memory that operations of this group need not copy (shared memory, where there is some). For buckets.
  std::shared_ptr<void> allocate(int64_t bytes);

  std::chrono::nanoseconds deadline() const;
  void set_deadline(std::chrono::nanoseconds deadline);  // for operations started from now on

  std::vector<OperationRecord> history() const;  // the last operations, oldest first

  struct State;  // internal

 private:
  friend class World;
  explicit Group(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// count elements over n ranks: the first count % n get one more.
std::vector<int64_t> even_counts(int64_t count, int n);

}  // namespace cairn::comm
