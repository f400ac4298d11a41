#pragma once
#include <any>
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::base {
class Recipe;
}

namespace cairn::sync {

// How updates travel between islands: shared by every rule whose islands step apart. The fields are the keys of [sync.island].
struct ExchangeOptions {
  std::string wire = "auto";   // how values are compressed (islands/compressor.h)
  double keep = 0.05;          // share of the values that topk and randk send
  std::string merge = "mean";  // how several updates become one (islands/merge_rule.h)
  double trim = 0.25;
  double timeout_s = 60;  // how long a round waits for an island
};

// kind = "diloco" and "streaming_diloco" (diloco.cpp).
struct OuterOptions {
  int64_t every = 30;  // H: inner steps between two rounds
  double outer_lr = 0;
  double outer_momentum = 0.9;
  int64_t outer_warmup = 0;
  std::string weights = "uniform";
  std::string pace = "alike";
  int64_t fragment_layers = 3;
  std::string pattern = "strided";
  std::string extras = "own";
  int64_t delay = 1;   // tau
  double blend = 0.5;  // alpha
  bool error_feedback = false;
};

// kind = "noloco" (noloco.cpp).
struct NolocoOptions {
  int64_t every = 50;
  int64_t group = 2;
  double outer_lr = 0.7;        // beta
  double outer_momentum = 0.5;  // alpha
  double pull = -1;             // gamma; below 0: as outer_lr
  bool prefetch_slow = true;
  std::string final_model = "mean";
};

// kind = "co2" (co2.cpp).
struct Co2Options {
  int64_t every = 0;  // tau; 0: measured
  int64_t min_every = 4;
  double outer_lr = 1;
  double outer_momentum = 0.2;
  std::string gap = "ratio";
  double gap_value = 1;
  double clip = 1;
};

// kind = "gossip" (gossip.cpp).
struct GossipOptions {
  int64_t every = 100;
  std::string topology = "random";
  double neighbours = 0.2;
  std::string schedule = "final";
  double window_start = 0.9;
  double window_width = 0.05;
  std::string final_model = "merge";
};

// The keys sync.<axis>.* of a recipe: those of every rule, and those of the rule that `kind` names.
struct SyncOptions {
  std::string kind = "all_reduce";
  double bucket_mib = 1;
  ExchangeOptions exchange = {};
  OuterOptions outer = {};
  NolocoOptions noloco = {};
  Co2Options co2 = {};
  GossipOptions gossip = {};
  std::any own = {};  // options that a rule declares in its own file (rules.h, own_keys)
};

// The schema of the axis `dp`.
base::Schema<SyncOptions> sync_schema();
// Reads [sync.dp] or [sync.island]: the rule, then the rule's keys. A key of another rule is refused; the message names the rules that have
// it.
SyncOptions read_dp_sync(base::Recipe& recipe);
SyncOptions read_island_sync(base::Recipe& recipe);
// All sections, in the order of the reference page.
std::vector<base::Section> sync_sections();

// What must be identical on all islands: each key of the rule with its value, as a recipe spells it.
std::vector<std::string> island_keys(const SyncOptions& options);

// Values that stand for "as the rule has it", resolved: wire = auto, outer_lr = 0, pull below 0.
std::string wire_of(const SyncOptions& options);
double outer_lr_of(const SyncOptions& options);
double pull_of(const NolocoOptions& options);

}  // namespace cairn::sync
