// Messages between the master of coded training and its workers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn::federate {

inline constexpr const char* kMasterNode = "master";
inline constexpr const char* kWorkTag = "work";    // to a worker: they arrive in order
inline constexpr const char* kReplyTag = "reply";  // to the master
std::string worker_node(int worker);

// The first byte of a message to a worker.
enum class WorkKind : uint8_t { weights, task, cancel, stop };

// Samples first .. first + count - 1 of a job's batch, with the weight of their gradient.
struct SampleRange {
  int64_t first = 0, count = 0;
  double weight = 1;
  int64_t chunk = 0;
};

// One result that a worker is asked for.
struct SlotOrder {
  int64_t job = 0, stream = 0, step = 0;
  int64_t group = -1;       // -1: chunks of its own, added up at the worker
  bool send_total = false;  // of its own chunks: the sum over rounds is sent now
  std::vector<SampleRange> ranges = {};
};

struct TaskOrder {
  int64_t round = 0;        // unique in a run
  double load = 0;          // share of a batch
  bool last_valid = false;  // the worker's results of its last task count
  bool forget = false;      // a new placement: sums of before are void
  int64_t jobs_done = 0;    // earlier ones are complete
  std::vector<SlotOrder> slots = {};
};

struct SlotReply {
  int64_t job = 0, group = -1;
  std::vector<std::pair<int64_t, double>> losses = {};  // by chunk: sums over its samples
  std::vector<float> gradient = {};                     // empty: it stays at the worker
};

struct TaskReply {
  int64_t round = 0, worker = 0;
  int64_t samples = 0;  // computed
  std::vector<SlotReply> slots = {};
};

std::vector<std::byte> encode_weights(int64_t stream, std::span<const float> weights);
std::vector<std::byte> encode(const TaskOrder& order);
std::vector<std::byte> encode_cancel(int64_t round);
std::vector<std::byte> encode_stop();
std::vector<std::byte> encode(const TaskReply& reply);

// Throw Error where a message is not what it should be.
WorkKind kind_of(std::span<const std::byte> message);
std::pair<int64_t, std::vector<float>> decode_weights(std::span<const std::byte> message);
TaskOrder decode_order(std::span<const std::byte> message);
int64_t decode_cancel(std::span<const std::byte> message);
TaskReply decode_reply(std::span<const std::byte> message);

}  // namespace cairn::federate
