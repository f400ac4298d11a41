#pragma once
#include <exception>
#include <string>
#include <vector>

namespace cairn {

// The one exception type of Cairn: a kind, one sentence, and the context gathered while it propagates. what() is the sentence with the
// context in parentheses.
class Error : public std::exception {
 public:
  // A kind exists only if some code acts on it (an exit code, a retry, a fallback).
  //   bad_input         a recipe, an argument or a file that a person can correct
  //   lost_peer         a rank died, froze or left; peer() names it
  //   corrupt_file      a file whose content cannot be used
  //   disk              a write failed: full, read-only, I/O error
  //   diverged          the loss is no longer a number, or ranks disagree
  //   broken_invariant  a mistake in Cairn (CAIRN_CHECK)
  enum class Kind { bad_input, lost_peer, corrupt_file, out_of_memory, disk, cancelled, diverged, broken_invariant };

  Error(Kind kind, std::string sentence);

  // The rank that a lost_peer error is about; -1 where there is none.
  Error& about_peer(int rank);
  // Adds context, innermost first: "in all_reduce of layers.7.mlp.up_proj, step 412".
  Error& with(std::string context);

  Kind kind() const { return kind_; }
  int peer() const { return peer_; }
  const std::string& sentence() const { return sentence_; }
  const std::vector<std::string>& context() const { return context_; }
  const char* what() const noexcept override { return what_.c_str(); }  // the sentence and its context, ready for a user

  // The exit code of the process: 2 for bad_input and corrupt_file, 4 for lost_peer, 3 for the rest.
  int exit_code() const;

 private:
  Kind kind_;
  int peer_ = -1;
  std::string sentence_;
  std::vector<std::string> context_;
  std::string what_;
};

// The kind as written in logs: "bad_input", "lost_peer".
const char* name(Error::Kind kind);

}  // namespace cairn
