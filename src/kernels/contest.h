#pragma once
#include <vector>

namespace cairn::kernels {

// Which of several ways to do the same thing is the fastest, found while they are in use: every use is a try of one of them. How long a try
// took may be told long after the next ones have begun.
//
// Each is tried twice, of which the first does not count (code is loaded then); the best few and the first are tried three times more. The
// first stays unless another is faster by a hundredth: less is chance.
class Contest {
 public:
  explicit Contest(int entrants);

  struct Turn {
    int who = 0;
    bool counts = false;  // tell how long it takes
  };
  Turn next();
  void took(int who, double seconds);

  bool is_decided() const { return decided_; }
  int winner() const { return winner_; }  // the first until it is decided

 private:
  void begin_round(const std::vector<int>& who, int tries);
  void end_round();
  double usual(int who) const;

  std::vector<std::vector<double>> seconds_;  // by entrant
  std::vector<int> turns_;                    // of this round, the next one last
  int waiting_ = 0;                           // turns that have been given and not told of
  int round_ = 0;
  int winner_ = 0;
  bool decided_ = false;
};

}  // namespace cairn::kernels
