#pragma once
#include <array>
#include <string>
#include <string_view>

#include "tidy/source.h"

namespace cairn::tidy {

// A word of our own that the field has a name for.
struct OldWord {
  std::string_view word;    // a whole word or phrase
  std::string_view better;  // what the field says
  bool code_only = false;   // an ordinary English word: only the identifier is meant
};

// docs/glossary.md maps these to the names that replaced them.
inline constexpr std::array kOldWords = {
    OldWord{"company", "step_group"},
    OldWord{"mates", "model_group"},
    OldWord{"abroad", "remote islands"},
    OldWord{"Abroad", "RemoteIslands"},
    OldWord{"AbroadRoom", "RemoteIslandHost"},
    OldWord{"started each by itself", "remote islands"},
    OldWord{"Wholes", "FullParameterGather"},
    OldWord{"takes", "should_step", true},
    OldWord{"let_pass", "skip_step"},
    OldWord{"agreed", "global_parameters"},
    OldWord{"AsAgreed", "ScopedGlobalParameters"},
    OldWord{"Council", "QuorumRound"},
    OldWord{"council", "quorum"},
    OldWord{"Verdict", "Decision"},
    OldWord{"Voyage", "PendingExchange"},
    OldWord{"Cargo", "FragmentMessage"},
    OldWord{"land", "apply_outer_step"},
    OldWord{"owed", "residual", true},
    OldWord{"flying_", "in_flight_"},
    OldWord{"IslandGate", "IslandMembership"},
    OldWord{"IslandPost", "IslandMessenger"},
    OldWord{"Meeting", "ShmGroup"},
    OldWord{"Encounter", "ShmCollective"},
    OldWord{"Desk", "ShmSlots"},
    OldWord{"Errand", "Request"},
    OldWord{"Strangers", "UnauthenticatedPeers"},
    OldWord{"Party", "NodeSpec"},
    OldWord{"MeetingPlace", "RendezvousEndpoint"},
    OldWord{"alike", "identical, the same, config_fingerprint"},
    OldWord{"Dispute", "CollectiveMismatch"},
    OldWord{"testify", "report_signature"},
    OldWord{"Pulse", "LivenessMonitor"},
    OldWord{"Presence", "PeerLiveness"},
    OldWord{"life", "incarnation", true},
    OldWord{"Crossroads", "PipelineTopology"},
    OldWord{"Crossing", "StageEdge"},
    OldWord{"Flight", "PendingTurn"},
    OldWord{"Aloft", "InFlight"},
    OldWord{"Game", "Simulation"},
    OldWord{"counted", "loss_denominator", true},
    OldWord{"samples_most", "max_local_samples"},
    OldWord{"noted", "must_record"},
    OldWord{"gone_back", "rolled_back"},
    OldWord{"eight bits", "fp8"},
    OldWord{"eight_bits", "fp8_linear"},
    OldWord{"RecordedSteps", "CudaGraphStep"},
    OldWord{"recorded steps", "CUDA graphs"},
    OldWord{"RunsToAttend", "VarlenAttention"},
    OldWord{"cudnn_runs", "cudnn_varlen"},
    OldWord{"attention of documents", "variable-length attention"},
    OldWord{"LogitsInParts", "ChunkedLogits"},
    OldWord{"logits in parts", "chunked cross entropy"},
    OldWord{"computed again", "recomputed"},
    OldWord{"inputs on the host", "activation offload"},
    OldWord{"lent", "gradient buffer reuse"},
    OldWord{"micro-batches make a step", "gradient accumulation"},
    OldWord{"shared out", "sharded"},
    OldWord{"talks", "chats"},
    OldWord{"letters", "messages, subscripts", true},
    OldWord{"a sum at every step", "synchronous data parallelism"},
    OldWord{"to the bit", "bitwise identical"},
    OldWord{"the same bits", "bitwise identical"},
    OldWord{"what it came to", "the result"},
    OldWord{"is to be had", "is available"},
    OldWord{"is told", "is reported"},
};

// The old words themselves, and text that is data: stories that models learn from, figures and their comments as they were measured.
inline bool may_use_old_words(std::string_view path) {
  for (std::string_view start : {"docs/glossary.md", "docs/measurements/", "src/data/stories/"})
    if (starts_with(path, start)) return true;
  return !starts_with(path, "src/") && !starts_with(path, "docs/");
}

// Spellings that recipes and snapshots of before have, and that are still read. Each stands in the one place that reads it.
struct OldSpelling {
  std::string_view path;
  std::string_view text;
};
inline constexpr std::array kOldSpellings = {OldSpelling{"src/sync/options.h", "\"alike\""}};

inline bool is_old_spelling(const Source& source, size_t at, std::string_view word) {
  for (const OldSpelling& one : kOldSpellings)
    if (source.path == one.path && at > 0 && starts_with(std::string_view(source.text).substr(at - 1), one.text) &&
        one.text.size() == word.size() + 2)
      return true;
  return false;
}

inline Findings uses_the_words_of_the_field(const Source& source) {
  Findings found;
  if (may_use_old_words(source.path)) return found;
  const std::string code = is_code(source) ? blank(source.text, Keep::code_only) : "";
  for (size_t at : find_word(code, "move"))  // std::move is no message
    if (at > 0 && (code[at - 1] == '.' || code[at - 1] == '>') && code.compare(at, 5, "move(") == 0)
      found.push_back(finding(source, at, "\"move\": the field says progress"));
  for (const OldWord& old : kOldWords)
    for (size_t at : find_word(old.code_only ? std::string_view(code) : std::string_view(source.text), old.word))
      if (!is_old_spelling(source, at, old.word))
        found.push_back(finding(source, at, "\"" + std::string(old.word) + "\": the field says " + std::string(old.better)));
  return found;
}

// The seams whose values are chosen by name: the recipe key, and the file or folder that may know the names.
struct Registry {
  std::string_view key;   // how code spells the option that holds the name
  std::string_view home;  // where comparing it with a literal is allowed
};
inline constexpr std::array kRegistries = {
    Registry{"train.method", "src/train/step_methods.cpp"}, Registry{"sync.kind", "src/sync/rules.cpp"},
    Registry{"island.kind", "src/sync/rules.cpp"},          Registry{"model.kind", "src/model/models.cpp"},
    Registry{"optim.kind", "src/optim/optimizers.cpp"},
};

// A literal beside the option that names a method means a special case: the method should declare it as data instead.
inline Findings names_methods_in_their_registry(const Source& source) {
  Findings found;
  if (!is_code(source) || !starts_with(source.path, "src/")) return found;
  const std::string text = blank(source.text, Keep::strings);
  for (const Registry& registry : kRegistries) {
    if (starts_with(source.path, registry.home)) continue;
    for (size_t at : find_word(text, registry.key)) {
      size_t next = text.find_first_not_of(" \n", at + registry.key.size());
      const bool after = next != std::string::npos && (text.compare(next, 2, "==") == 0 || text.compare(next, 2, "!=") == 0);
      if (after) next = text.find_first_not_of(" \n", next + 2);
      const size_t line = text.rfind('\n', at) + 1;
      const std::string_view before = std::string_view(text).substr(line, at - line);
      const bool ahead = before.find("\" == ") != std::string_view::npos || before.find("\" != ") != std::string_view::npos;
      if ((after && next != std::string::npos && text[next] == '"') || ahead)
        found.push_back(finding(source, at,
                                std::string(registry.key) + " is compared with a name outside of " + std::string(registry.home) +
                                    ": let the method declare what you need to know"));
    }
  }
  return found;
}

}  // namespace cairn::tidy
