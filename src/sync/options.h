#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::base {
class Recipe;
}

namespace cairn::sync {

// How islands talk: what all rules of islands share.
struct ExchangeOptions {
  std::string wire = "auto";
  double keep = 0.05;
  std::string merge = "mean";
  double trim = 0.25;
  double timeout_s = 60;
};

// kind = "diloco" and "streaming_diloco".
struct OuterOptions {
  int64_t every = 30;
  double outer_lr = 0;
  double outer_momentum = 0.9;
  int64_t outer_warmup = 0;
  std::string weights = "uniform";
  std::string pace = "alike";
  int64_t fragment_layers = 3;
  std::string pattern = "strided";
  std::string extras = "own";
  int64_t delay = 1;
  double blend = 0.5;
  bool error_feedback = false;
};

// kind = "noloco".
struct NolocoOptions {
  int64_t every = 50;
  int64_t group = 2;
  double outer_lr = 0.7;
  double outer_momentum = 0.5;
  double pull = -1;
  bool prefetch_slow = true;
  std::string final_model = "mean";
};

// kind = "co2".
struct Co2Options {
  int64_t every = 0;
  int64_t min_every = 4;
  double outer_lr = 1;
  double outer_momentum = 0.2;
  std::string gap = "ratio";
  double gap_value = 1;
  double clip = 1;
};

// kind = "gossip".
struct GossipOptions {
  int64_t every = 100;
  std::string topology = "random";
  double neighbours = 0.2;
  std::string schedule = "final";
  double window_start = 0.9;
  double window_width = 0.05;
  std::string final_model = "merge";
};

// The recipe's sync.<axis>.* keys: those of every rule, and those of the rule that `kind` names.
struct SyncOptions {
  std::string kind = "all_reduce";
  double bucket_mib = 1;
  ExchangeOptions exchange = {};
  OuterOptions outer = {};
  NolocoOptions noloco = {};
  Co2Options co2 = {};
  GossipOptions gossip = {};
};

// Of the axis `dp`.
base::Schema<SyncOptions> sync_schema();
// Reads sync.dp or sync.island: the rule, then its own keys. Keys of another rule are refused, naming the rules that have them.
SyncOptions read_dp_sync(base::Recipe& recipe);
SyncOptions read_island_sync(base::Recipe& recipe);
// The sections of the reference page.
std::vector<base::Section> sync_sections();

// What must be alike on all islands: each key of the rule with its value, as recipes have them.
std::vector<std::string> island_keys(const SyncOptions& options);

// What "auto" stands for.
std::string wire_of(const SyncOptions& options);
double outer_lr_of(const SyncOptions& options);
double pull_of(const NolocoOptions& options);

}  // namespace cairn::sync
