#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/label.h"
#include "sync/islands/link.h"

namespace cairn::sync {

// What a message between islands is about. Messages are told apart by it and by their sender, so they may come early, late or not at all.
struct MessageTag {
  enum class Kind : uint8_t {
    update,
    chunk,
    vote,
    decision,
    decision_query,  // rounds of all
    slow_weights,
    progress,
    confirm,
    model,  // of some
    status,
    found,
    join,
    state,
    state_sent,
    ready,
    merged_update,
    round_result  // coming and going
  };
  Kind kind = Kind::update;
  int64_t step = 0;
  int32_t part = 0;  // of what there are several at a step: fragments, phases
  auto operator<=>(const MessageTag&) const = default;
};

// Messages among islands, told apart by subject. Nobody need take part but sender and reader: an island that is late or lost fails nothing
// here. What comes is checked for its form before it is kept; what nobody asked for is bounded.
class IslandMessenger {
 public:
  struct Parts {
    std::unique_ptr<IslandLink> link;
    uint64_t signature = 0;         // of model, layout and rule: messages with another one are refused
    int64_t max_message_bytes = 0;  // of a message; longer ones are refused before anything is allocated
    // Memory of long messages is used again for those that follow: of a gigabyte the system takes tenths of a second to give and to take
    // it, which a GPU that waits for its host would stand idle.
    bool reuse_buffers = false;
  };
  explicit IslandMessenger(Parts parts);

  int me() const;
  int size() const;
  bool lost(int island) const;
  void readmit(int island) { link_->readmit(island); }
  std::chrono::nanoseconds now() const;

  void send(int to, const MessageTag& tag, std::span<const std::byte> body, comm::Purpose purpose);
  // The same in two parts, of which the first, where the work is, may be done by any thread.
  using Pieces = std::vector<std::vector<std::byte>>;
  Pieces split(const MessageTag& tag, std::span<const std::byte> body) const;
  void send(int to, Pieces pieces, comm::Purpose purpose);
  // What has come from this island under the subject; null: nothing yet.
  const std::vector<std::byte>* find(int from, const MessageTag& tag) const;
  std::vector<std::byte> take(int from, const MessageTag& tag);
  // Messages of this step and earlier ones are of no use any more, come they yet or not.
  void forget(MessageTag::Kind kind, int64_t step);
  // Memory for a message of so many bytes: of one that was given back, with anything in it, or new and empty.
  std::vector<std::byte> take_buffer(size_t bytes);
  void recycle(Pieces pieces);  // nobody needs them any more

  // Takes in what has arrived, without waiting.
  void pump();
  // Waits, taking in what arrives, until `done` (which may answer by sending) or until this time. False: the time is over.
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds until);

  // Called for messages of this kind in place of keeping them.
  using Handler = std::function<void(int from, const MessageTag&, std::span<const std::byte> body)>;
  void on_message(MessageTag::Kind kind, Handler handler);

  int64_t refused() const { return refused_; }  // messages that were not what they had to be

 private:
  struct PartialMessage {          // a long message arrives in pieces
    std::vector<std::byte> bytes;  // as many as have come
    int64_t whole = 0;
  };
  void arrived(const IslandLink::Message& message);

  std::unique_ptr<IslandLink> link_;
  uint64_t signature_;
  int64_t max_message_bytes_;
  std::map<std::pair<int, MessageTag>, std::vector<std::byte>> kept_;
  std::map<std::pair<int, MessageTag>, PartialMessage> partial_;
  std::map<MessageTag::Kind, int64_t> forgotten_;  // steps up to which
  std::map<MessageTag::Kind, Handler> handlers_;
  std::vector<int64_t> bytes_kept_;  // by island
  int64_t refused_ = 0;
  bool reuse_buffers_;
  Pieces free_buffers_;  // the longest, as many as there are islands
};

}  // namespace cairn::sync
