#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/label.h"
#include "comm/mailbox.h"

namespace cairn::comm {
class Group;
}

namespace cairn::sync {

// What a message between islands is about. Messages are told apart by it and by their sender, so they may come early, late or not at all.
struct Subject {
  enum class Kind : uint8_t { parcel, share, vote, verdict, question, slow, progress, confirm, pull };
  Kind kind = Kind::parcel;
  int64_t step = 0;
  int32_t part = 0;  // of what there are several at a step: fragments, phases
  auto operator<=>(const Subject&) const = default;
};

// Messages among the ranks that hold one shard of the model on different islands. Nobody need take part but sender and reader: an island
// that is late or lost fails nothing here. What comes is checked for its form before it is kept; what nobody asked for is bounded.
class IslandPost {
 public:
  struct Parts {
    comm::Group& islands;    // one rank of each, this one among them: position = island
    uint64_t signature = 0;  // of model, layout and rule: messages with another one are refused
    int64_t bytes_most = 0;  // of a message; longer ones are refused before anything is allocated
  };
  explicit IslandPost(Parts parts);

  int me() const;
  int size() const;
  bool lost(int island) const;
  std::chrono::nanoseconds now() const;

  void send(int to, const Subject& subject, std::span<const std::byte> body, comm::Purpose purpose);
  // What has come from this island under the subject; null: nothing yet.
  const std::vector<std::byte>* find(int from, const Subject& subject) const;
  std::vector<std::byte> take(int from, const Subject& subject);
  // Messages of this step and earlier ones are of no use any more, come they yet or not.
  void forget(Subject::Kind kind, int64_t step);

  // Takes in what has arrived, without waiting.
  void pump();
  // Waits, taking in what arrives, until `done` (which may answer by sending) or until this time. False: the time is over.
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds until);

  // Called for messages of this kind in place of keeping them.
  void answer(Subject::Kind kind, std::function<void(int from, const Subject&)> answer);

  int64_t refused() const { return refused_; }  // messages that were not what they had to be

 private:
  struct Half {  // a long message arrives in pieces
    std::vector<std::byte> bytes;
    int64_t missing = 0;
  };
  void arrived(const comm::Mail& mail);

  comm::Group& islands_;
  uint64_t signature_;
  int64_t bytes_most_;
  std::map<std::string, int> island_of_;  // by node
  comm::Mailbox mailbox_;
  comm::Node node_;
  comm::Errand next_;
  std::map<std::pair<int, Subject>, std::vector<std::byte>> kept_;
  std::map<std::pair<int, Subject>, Half> halves_;
  std::map<Subject::Kind, int64_t> forgotten_;  // steps up to which
  std::map<Subject::Kind, std::function<void(int, const Subject&)>> answers_;
  std::vector<int64_t> bytes_kept_;  // by island
  int64_t refused_ = 0;
};

}  // namespace cairn::sync
