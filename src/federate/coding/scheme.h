// Schemes of (sequential) gradient coding as state machines: which worker computes what in which round, which late workers a round may do
// without, and how a job's gradient is made of replies. No time and no messages: the live master, the search for parameters and the tests
// drive the same objects.
//
//   job     one gradient over one batch. Job t starts in round t and is complete at the end of round t + delay
//   round   every worker has a task of several slots; at its end some workers are late, and what they computed is lost
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "base/enum_names.h"
#include "base/error.h"
#include "sync/coding/gradient_code.h"

namespace cairn::federate {

// none: every worker has one part and all are waited for.      gc: gradient coding, s late workers per round.
// srsgc: gradient coding whose missing replies are repeated B rounds later.
// msgc: each worker's own chunks are repeated where they were missing, and a small coded rest covers what cannot be.
enum class SchemeKind { none, gc, srsgc, msgc };
inline constexpr base::EnumName<SchemeKind> kSchemeKindNames[] = {
    {SchemeKind::none, "none"}, {SchemeKind::gc, "gc"}, {SchemeKind::srsgc, "srsgc"}, {SchemeKind::msgc, "msgc"}};
inline const char* name_of(SchemeKind value) { return base::enum_name(kSchemeKindNames, value); }

// A scheme and its parameters. (B, W, lambda): in W rounds at most lambda workers are late, each for at most B rounds in a row.
struct SchemeSpec {
  SchemeKind kind = SchemeKind::none;
  int s = 0;                     // gc
  int b = 1, w = 2, lambda = 1;  // srsgc, msgc

  int delay() const;         // rounds between the start of a job and its end
  std::string text() const;  // "msgc(1,3,4)"
  bool operator==(const SchemeSpec&) const = default;
};

// A part of a job's batch, in units of which the batch has Scheme::units().
struct Chunk {
  int64_t first = 0, count = 0;
};

// One piece of a task: sum over chunks of weight * gradient of the chunk, for one job.
struct Slot {
  static constexpr int kAlone = -1;
  int64_t job = 0;
  int group = kAlone;      // of the job's coded results; kAlone: a chunk that no other worker has, summed up at the worker over its rounds
  int own_chunk = 0;       // of a kAlone slot: which of the worker's chunks
  bool completes = false;  // of a kAlone slot: the worker has all its chunks of the job then, and sends their sum
  std::vector<int> chunks = {};
  std::vector<double> weights = {};
};
using Task = std::vector<Slot>;  // empty: nothing to do

// How the gradient of a job is made: the sums of all workers' own chunks, where there are some, and of every group the replies by weight.
struct JobDecoding {
  int64_t job = 0;
  bool own_sums = false;
  std::vector<std::vector<double>> weights = {};  // by group and worker
};

using Workers = std::vector<char>;  // a flag for each

class Scheme {
 public:
  virtual ~Scheme() = default;
  virtual int workers() const = 0;
  virtual int delay() const = 0;
  virtual double load() const = 0;    // share of a batch that a worker computes per round
  virtual int64_t units() const = 0;  // of a batch
  virtual const std::vector<Chunk>& chunks() const = 0;
  int64_t rounds() const { return jobs() + delay(); }
  virtual int64_t jobs() const = 0;

  // Rounds follow each other from 0: tasks, then conforms for any late sets, then close with one that conforms.
  virtual std::vector<Task> tasks(int64_t round) = 0;
  virtual bool conforms(const Workers& late) const = 0;
  virtual void close(const Workers& late) = 0;
  // After a round is closed: the job that it completes, if there is one.
  virtual bool completed(JobDecoding& job) const = 0;
};

// The share of a batch that a worker computes per round.
double load_of(const SchemeSpec& spec, int workers);

// Codes that several schemes share: to find one may take a second. Not for several threads.
class CodeCache {
 public:
  // As the constructor of GradientCode.
  const sync::GradientCode& find(sync::CodeKind kind, int workers, int stragglers, uint64_t seed, const std::string& key);

 private:
  std::map<std::tuple<sync::CodeKind, int, int, uint64_t>, std::variant<sync::GradientCode, Error>> codes_;
};

// The scheme for jobs 0 .. jobs - 1. Refuses parameters that it cannot have, by the names of the recipe keys ([study.scheme]).
std::unique_ptr<Scheme> make_scheme(const SchemeSpec& spec, int workers, int64_t jobs, sync::CodeKind code, uint64_t seed,
                                    CodeCache* codes = nullptr);

}  // namespace cairn::federate
