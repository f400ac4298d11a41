#pragma once
#include <any>
#include <cstdint>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/schema.h"

namespace cairn::base {
class Recipe;
}

namespace cairn::sync {

// How several updates become one (islands/merge_rule.h).
enum class MergeKind { mean, clip, trim, median };
inline constexpr base::EnumName<MergeKind> kMergeKindNames[] = {
    {MergeKind::mean, "mean"}, {MergeKind::clip, "clip"}, {MergeKind::trim, "trim"}, {MergeKind::median, "median"}};

// What an island does that reaches no majority of the islands.
enum class OnMinority { wait, stop, go_on };
inline constexpr base::EnumName<OnMinority> kOnMinorityNames[] = {
    {OnMinority::wait, "wait"}, {OnMinority::stop, "stop"}, {OnMinority::go_on, "continue"}};

// How updates travel between islands: shared by every rule whose islands step apart. The fields are the keys of [sync.island].
struct ExchangeOptions {
  std::string wire = "auto";  // how values are compressed (islands/compressor.h)
  double keep = 0.05;         // share of the values that topk and randk send
  MergeKind merge = MergeKind::mean;
  double trim = 0.25;
  double timeout_s = 60;  // how long a round waits for an island
  OnMinority on_minority = OnMinority::wait;
  double minority_timeout_s = 0;  // how long an island without a majority waits for one; 0: five times timeout_s
};

// How much an island's update counts: all the same, or by the tokens that it learned from.
enum class IslandWeights { uniform, tokens };
inline constexpr base::EnumName<IslandWeights> kIslandWeightsNames[] = {{IslandWeights::uniform, "uniform"},
                                                                        {IslandWeights::tokens, "tokens"}};
// Whether every island takes every step, or slower ones skip some.
enum class Pace { equal, own };
inline constexpr base::EnumName<Pace> kPaceNames[] = {{Pace::equal, "equal", "alike"}, {Pace::own, "own"}};
// Which layers a fragment has: every n-th, or neighbours.
enum class FragmentPattern { strided, sequential };
inline constexpr base::EnumName<FragmentPattern> kFragmentPatternNames[] = {{FragmentPattern::strided, "strided"},
                                                                            {FragmentPattern::sequential, "sequential"}};
// Where parameters outside of layers go: a fragment of their own, or each into the smallest one.
enum class ExtraParameters { own, smallest };
inline constexpr base::EnumName<ExtraParameters> kExtraParametersNames[] = {{ExtraParameters::own, "own"},
                                                                            {ExtraParameters::smallest, "smallest"}};

// kind = "diloco" and "streaming_diloco" (diloco.cpp).
struct OuterOptions {
  int64_t every = 30;  // H: inner steps between two rounds
  double outer_lr = 0;
  double outer_momentum = 0.9;
  int64_t outer_warmup = -1;  // -1: kOuterWarmup, or all rounds of a shorter run
  int64_t start_after = 0;
  IslandWeights weights = IslandWeights::uniform;
  Pace pace = Pace::equal;
  int64_t fragment_layers = 3;
  FragmentPattern pattern = FragmentPattern::strided;
  ExtraParameters extras = ExtraParameters::own;
  int64_t delay = 1;   // tau
  double blend = 0.5;  // alpha
  bool error_feedback = false;
};

// What a NoLoCo run ends with: the mean over all islands, or each island's own model.
enum class NolocoFinal { mean, one };
inline constexpr base::EnumName<NolocoFinal> kNolocoFinalNames[] = {{NolocoFinal::mean, "mean"}, {NolocoFinal::one, "one"}};

// kind = "noloco" (noloco.cpp).
struct NolocoOptions {
  int64_t every = 50;
  int64_t group = 2;
  double outer_lr = 0.7;        // beta
  double outer_momentum = 0.5;  // alpha
  double pull = -1;             // gamma; below 0: as outer_lr
  bool prefetch_slow = true;
  NolocoFinal final_model = NolocoFinal::mean;
};

// What a late update is divided by: how far the islands have gone since, a constant, or nothing.
enum class StalenessGap { ratio, constant, off };
inline constexpr base::EnumName<StalenessGap> kStalenessGapNames[] = {
    {StalenessGap::ratio, "ratio"}, {StalenessGap::constant, "constant"}, {StalenessGap::off, "off"}};

// kind = "co2" (co2.cpp).
struct Co2Options {
  int64_t every = 0;  // tau; 0: measured
  int64_t min_every = 4;
  double outer_lr = 1;
  double outer_momentum = 0.2;
  StalenessGap gap = StalenessGap::ratio;
  double gap_value = 1;
  double clip = 1;
};

// Whom an island averages with.
enum class Topology { random, pairwise, ring, exponential, complete };
inline constexpr base::EnumName<Topology> kTopologyNames[] = {{Topology::random, "random"},
                                                              {Topology::pairwise, "pairwise"},
                                                              {Topology::ring, "ring"},
                                                              {Topology::exponential, "exponential"},
                                                              {Topology::complete, "complete"}};
// How much islands communicate from round to round (gossip_schedule.h).
enum class GossipSchedule { fixed, final_only, window, linear, cosine, budget };
inline constexpr base::EnumName<GossipSchedule> kGossipScheduleNames[] = {
    {GossipSchedule::fixed, "fixed"},   {GossipSchedule::final_only, "final"}, {GossipSchedule::window, "window"},
    {GossipSchedule::linear, "linear"}, {GossipSchedule::cosine, "cosine"},    {GossipSchedule::budget, "budget"}};
// What a gossip run ends with: the mean over all islands, or each island's own model.
enum class GossipFinal { merge, none };
inline constexpr base::EnumName<GossipFinal> kGossipFinalNames[] = {{GossipFinal::merge, "merge"}, {GossipFinal::none, "none"}};

// kind = "gossip" (gossip.cpp).
struct GossipOptions {
  int64_t every = 100;
  Topology topology = Topology::random;
  double neighbours = 0.2;
  GossipSchedule schedule = GossipSchedule::final_only;
  double window_start = 0.9;
  double window_width = 0.05;
  double neighbours_end = 0;  // linear, cosine; 0: all other islands
  double budget_mib = 100;
  GossipFinal final_model = GossipFinal::merge;
  int64_t track_merge_every = 0;  // in rounds; 0: never
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
