#pragma once
#include <exception>
#include <string>
#include <vector>

namespace cairn {

// The one exception of Cairn: what kind of trouble, one sentence about it, and the context gathered on the way out.
class Error : public std::exception {
 public:
  // A kind exists only if some code acts on it (the exit code, a retry, a fallback).
  enum class Kind { bad_input, lost_peer, corrupt_file, out_of_memory, disk, cancelled, diverged, broken_invariant };

  Error(Kind kind, std::string sentence);

  // The rank that a lost_peer error is about; -1 where there is none.
  Error& about_peer(int rank);
  // Adds where this happened, innermost first: "in all_reduce of layers.7.mlp.up_proj, step 412".
  Error& with(std::string context);

  Kind kind() const { return kind_; }
  int peer() const { return peer_; }
  const std::string& sentence() const { return sentence_; }
  const std::vector<std::string>& context() const { return context_; }
  const char* what() const noexcept override { return what_.c_str(); }  // the sentence and its context, ready for a user

  // What the process should end with: 2 wrong recipe, arguments or files, 4 lost peer, 3 any other failed run.
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
