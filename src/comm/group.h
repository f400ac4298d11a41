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

class Codec;
class World;

// Elements in memory that somebody else owns and keeps until the operation on them is done.
struct Span {
  void* data = nullptr;
  int64_t count = 0;
  Dtype dtype = Dtype::f32;
  // Of a device's memory: tells on which of its streams (a cudaStream_t) the caller works just now. Null: host memory. Only where the
  // world's transport lets devices talk among themselves.
  void* (*stream)(int device) = nullptr;
};

// What is known about an operation that ran: the group keeps the last ones.
struct OperationRecord {
  uint64_t sequence = 0;
  std::string name;  // "all_reduce of layers.7.mlp.up_proj, 4096 f32"
  Purpose purpose = Purpose::control;
  std::chrono::nanoseconds begun{};
  std::chrono::nanoseconds ended{};  // zero: under way
  bool failed = false;
};

// An ordered subset of the world's ranks and the operations among them. It belongs to its World, whose thread alone may use it.
//
// Every call only starts an operation; its Work says when it is done. Operations complete in the order in which they were started. All
// ranks of a group must start the same collectives in the same order; who does not is named to the others. A collective's result is the
// same bits on every rank, whatever the order of arrival. An operation that is not done within the group's deadline fails and names who was
// late; after a failure the group is broken and every later operation throws the same error.
//
// Ranks here are positions in the group. Tensors must be contiguous. CUDA tensors travel from device to device where the transport can
// (nccl_transport.h): such an operation comes after what is on the current stream when it is called, and Work::wait() only lets the current
// stream wait for it. Elsewhere, and in coded_all_reduce, they travel through pinned host memory.
// Counts are in elements, one per rank of the group; empty: as even as can be, as `even_counts` says.
class Group {
 public:
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  const std::vector<int>& ranks() const;  // the world's numbers of the members, in order
  World& world() const;

  // x becomes the reduction of all ranks' x. Up to 8 ranks each sends 2(n-1)/n of x and the sum is in rank order; choice.h says what
  // happens beyond.
  Work all_reduce(Span x, Reduce reduce, Label label);
  // x (f32) becomes the sum of all ranks' x, which travel as codes: coded_all_reduce.h says what comes of it. One of make_codec's; it need
  // not live longer than the call.
  Work coded_all_reduce(Span x, const Codec& codec, Label label);
  // The root's x becomes the reduction of all ranks' x, in rank order; elsewhere x stays as it is.
  Work reduce(Span x, int root, Reduce reduce, Label label);
  // x becomes the root's x.
  Work broadcast(Span x, int root, Label label);
  // out becomes the ranks' `in`, one after the other. `in` may be its own place inside `out`.
  Work all_gather(Span out, Span in, Label label, std::vector<int64_t> counts = {});
  // out becomes this rank's part of the reduction of all ranks' `in`. `out` may be its own place inside `in`.
  Work reduce_scatter(Span out, Span in, Reduce reduce, Label label, std::vector<int64_t> counts = {});
  // The root's out becomes the ranks' `in`, one after the other; elsewhere out is not touched.
  Work gather(Span out, Span in, int root, Label label, std::vector<int64_t> counts = {});
  // out becomes this rank's part of the root's `in`.
  Work scatter(Span out, Span in, int root, Label label, std::vector<int64_t> counts = {});
  // in[i] (in_counts[i] elements) goes to rank i; out is what the ranks sent here, one after the other. Empty counts: even.
  Work all_to_all(Span out, Span in, Label label, std::vector<int64_t> out_counts = {}, std::vector<int64_t> in_counts = {});
  // Paired with the peer's recv by order among this pair; not a collective, so the others need not know.
  Work send(Span x, int peer, Label label);
  Work recv(Span x, int peer, Label label);
  // Done when every rank has come here.
  Work barrier(std::string_view what = "");

  Work all_reduce(const at::Tensor& x, Reduce reduce, Label label);
  Work coded_all_reduce(const at::Tensor& x, const Codec& codec, Label label);
  Work reduce(const at::Tensor& x, int root, Reduce reduce, Label label);
  Work broadcast(const at::Tensor& x, int root, Label label);
  Work all_gather(const at::Tensor& out, const at::Tensor& in, Label label, std::vector<int64_t> counts = {});
  Work reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduce reduce, Label label, std::vector<int64_t> counts = {});
  // Where it is not needed (gather: out, scatter: in, both but at the root), a tensor may be undefined.
  Work gather(const at::Tensor& out, const at::Tensor& in, int root, Label label, std::vector<int64_t> counts = {});
  Work scatter(const at::Tensor& out, const at::Tensor& in, int root, Label label, std::vector<int64_t> counts = {});
  Work all_to_all(const at::Tensor& out, const at::Tensor& in, Label label, std::vector<int64_t> out_counts = {},
                  std::vector<int64_t> in_counts = {});
  Work send(const at::Tensor& x, int peer, Label label);
  Work recv(const at::Tensor& x, int peer, Label label);

  // Lets what is under way advance, without waiting. Called now and then while computing, so that communication overlaps it without a
  // thread.
  void progress();

  // Memory from which operations of this group copy least. Buckets come from here.
  std::shared_ptr<void> allocate(int64_t bytes);

  std::chrono::nanoseconds deadline() const;
  void set_deadline(std::chrono::nanoseconds deadline);  // for operations started from now on

  std::vector<OperationRecord> history() const;  // the last operations, oldest first

  struct State;  // of interest to comm alone

 private:
  friend class World;
  explicit Group(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// count elements over n ranks: the first count % n get one more.
std::vector<int64_t> even_counts(int64_t count, int n);

}  // namespace cairn::comm
