#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/envelope.h"
#include "comm/link_model.h"
#include "comm/local/fault.h"
#include "comm/transport.h"

namespace cairn::harness {

// A random course of work and misfortune on the virtual network, made from one seed: how many ranks, which groups, which operations in
// which order, what the links are like, what goes wrong. All ranks start the operations they take part in in the order of the story,
// several at once, and wait for them in an order of their own.
struct Story {
  struct Members {
    std::vector<int> ranks;
    std::string name;
  };
  struct Operation {
    comm::OperationKind kind = comm::OperationKind::barrier;
    int group = 0;
    comm::Dtype dtype = comm::Dtype::f32;
    comm::Reduce reduce = comm::Reduce::sum;
    int root = 0;                                   // position in the group; of a send, its sender
    int to = 0;                                     // of a send
    std::vector<std::vector<int64_t>> counts = {};  // [0] by member; of an all_to_all [from][to]
  };

  uint64_t seed = 0;
  int ranks = 2;
  comm::LinkModel link = {};
  comm::LinkFacts facts = {};  // what the ranks are told of the links: more than eight choose their algorithms by it
  std::chrono::nanoseconds deadline = std::chrono::seconds(20);
  std::vector<Members> groups = {};
  std::vector<Operation> operations = {};
  std::vector<comm::Fault> faults = {};
};

Story make_story(uint64_t seed);
std::string describe(const Story& story);  // a few lines, for who has to understand a failure

// What came of a story, and what of it must not have: a wrong result, an error that blames the wrong rank or nobody, an error where nothing
// harmful went wrong, a message that nobody waited for, a wait past its deadline.
struct Outcome {
  std::vector<std::string> wrong;
  int faults_fired = 0;
  std::array<int, 8> struck = {};  // by comm::Fault::Kind
  int errors = 0;                  // ranks that ended by one
  int second_hand = 0;             // errors that blame a rank which only waited, itself, for the culprit: see blame() in chaos.cpp
  int64_t results = 0;             // operations whose result was checked
  std::string event_log;
};

using Wrap = std::function<std::unique_ptr<comm::Transport>(std::unique_ptr<comm::Transport>)>;
Outcome play(const Story& story, const Wrap& wrap = {});

}  // namespace cairn::harness
