#include "base/error.h"

#include <utility>

namespace cairn {

Error::Error(Kind kind, std::string sentence) : kind_(kind), sentence_(std::move(sentence)), what_(sentence_) {}

Error& Error::about_peer(int rank) {
  peer_ = rank;
  return *this;
}

Error& Error::with(std::string context) {
  what_ += (context_.empty() ? " (" : "; ");
  if (!context_.empty()) what_.erase(what_.rfind(')'), 1);
  what_ += context + ")";
  context_.push_back(std::move(context));
  return *this;
}

int Error::exit_code() const {
  switch (kind_) {
    case Kind::bad_input:
    case Kind::corrupt_file:
      return 2;
    case Kind::lost_peer:
      return 4;
    default:
      return 3;
  }
}

const char* name(Error::Kind kind) {
  switch (kind) {
    case Error::Kind::bad_input:
      return "bad_input";
    case Error::Kind::lost_peer:
      return "lost_peer";
    case Error::Kind::corrupt_file:
      return "corrupt_file";
    case Error::Kind::out_of_memory:
      return "out_of_memory";
    case Error::Kind::disk:
      return "disk";
    case Error::Kind::cancelled:
      return "cancelled";
    case Error::Kind::diverged:
      return "diverged";
    case Error::Kind::broken_invariant:
      return "broken_invariant";
  }
  return "unknown";
}

}  // namespace cairn
