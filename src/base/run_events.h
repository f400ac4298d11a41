#pragma once
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace cairn::base {

// events.jsonl of a run directory: what happened to the run, one JSON object a line (docs/reference/files.md). Several processes append to
// it: the agent of the run, its first rank, a keeper.
class RunEvents {
 public:
  static constexpr const char* kFile = "events.jsonl";

  explicit RunEvents(std::filesystem::path run) : run_(std::move(run)) {}  // an empty path: nothing is written

  // Appends {"time": Unix seconds, "event": `event`, and the fields of `facts`}. A line is one write, so that lines of several processes
  // do not mix; an incomplete last line, left by a crash, is ended first. Never throws, because an event must not end a run: returns
  // whether the line was written. A run directory that is missing is not made.
  bool write(std::string_view event, const OrderedJson& facts = OrderedJson::object()) const noexcept;

 private:
  std::filesystem::path run_;
};

// The events of a run, oldest first, without lines that are incomplete. Empty if there is no such file.
std::vector<Json> read_events(const std::filesystem::path& run);

}  // namespace cairn::base
