#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

namespace cairn::comm {

// Assigns long-lived flows to paths so that the load of the links is even. A path is a list of links: the NIC ports of two machines, or the
// uplink and downlink of a spine in a Clos fabric. The net transport plans its channels with it, the proof a simulated fabric.
class PathPlanner {
 public:
  using Nanoseconds = std::chrono::nanoseconds;
  using Path = std::vector<int>;  // links

  struct Options {
    double hysteresis = 0.2;                          // a new plan must lower the highest utilisation by this fraction
    Nanoseconds interval = std::chrono::seconds(30);  // between two plans that move flows whose paths work
  };

  PathPlanner() = default;
  explicit PathPlanner(const Options& options) : options_(options) {}

  int add_link(double bytes_per_s);
  void set_capacity(int link, double bytes_per_s);  // 0: the link is down

  // A flow of so many bytes per step, over one of these paths; with several channels the bytes are divided over them.
  int add_flow(double bytes, std::vector<Path> candidates, int channels = 1);
  void remove_flow(int flow);
  void set_bytes(int flow, double bytes);

  // Places what has no working path at once: new flows, and channels whose path lost a link. All else moves only where that lowers the
  // highest utilisation by `hysteresis`, and at most once per `interval`. Returns how many channels were placed or moved.
  int plan(Nanoseconds now);

  // By channel: the index of its path among the candidates; -1: none works.
  const std::vector<int>& paths_of(int flow) const { return flows_.at(flow).chosen; }
  double load(int link) const { return links_[static_cast<size_t>(link)].load; }
  // Load over capacity of the busiest working link: the seconds that a step's bytes take.
  double highest_utilisation() const;

 private:
  struct Link {
    double capacity = 0;
    double load = 0;
    int channels = 0;
  };
  struct Flow {
    double bytes = 0;
    std::vector<Path> candidates;
    std::vector<int> chosen;  // by channel
    double share() const { return bytes / static_cast<double>(chosen.size()); }
  };
  bool works(const Path& path) const;
  void book(const Flow& flow, int path, int sign);
  int place(Flow& flow, size_t channel);  // the best path, which it books
  std::vector<int> heaviest_first() const;
  int place_missing();
  int plan_anew();

  Options options_ = {};
  std::vector<Link> links_;
  std::map<int, Flow> flows_;
  int next_flow_ = 0;
  Nanoseconds planned_at_ = Nanoseconds::min() / 2;
};

// Divides bytes over parallel channels by the rates that they are measured to have.
//   rate <- rate + 0.3 (measured - rate);  share = max(rate / sum of rates, 0.05), normalised
// The shares in use follow once one of them is off by more than the hysteresis, so that noise moves nothing.
class RateSplit {
 public:
  struct Options {
    double smoothing = 0.3;
    double hysteresis = 0.2;
    double least_share = 0.05;
  };

  explicit RateSplit(int channels) : RateSplit(channels, Options()) {}
  RateSplit(int channels, const Options& options);

  void measured(int channel, double bytes_per_s);
  void lose(int channel);                                                                 // its share becomes 0
  double share(int channel) const { return shares_[static_cast<size_t>(channel)]; }       // in use; they sum to 1
  double bytes_per_s(int channel) const { return rates_[static_cast<size_t>(channel)]; }  // 0: not measured yet
  bool lost(int channel) const { return lost_[static_cast<size_t>(channel)]; }

 private:
  std::vector<double> proportional() const;
  Options options_;
  std::vector<double> rates_, shares_;
  std::vector<bool> lost_;
};

}  // namespace cairn::comm
