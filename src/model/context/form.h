#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::model {

// Context parallelism: how a rank's queries see the keys of other ranks. All forms are exact; they differ in bytes, in the directions of
// links that they use, in memory and in the order of sums, so in rounding.
//   ring            ring attention (arXiv:2310.01889). Blocks of keys and values go round the ring, each as far as some rank may see it; a
//                   block is in flight while the one before is processed. Memory for two blocks. Backward: the gradient of a block follows
//                   it from the first rank that sees it to the last, and is sent home from there.
//   ring_both_ways  the same with half of each block in either direction of the ring: both directions of every link are used.
//   gather          one all-gather of keys and values, then one kernel call for each segment of queries. Backward gathers again and
//                   reduce-scatters the gradients. Memory for the keys and values of the whole sequence, one layer at a time.
//   ulysses         all-to-all from positions to heads and back (DeepSpeed-Ulysses, arXiv:2309.14509): each rank attends over the whole
//                   sequence with its part of the heads. The number of ranks must divide the heads.
//   token_ring      keys and values stay; queries go round the ring, and each partial output returns at once to the owner of its queries,
//                   against the direction of the queries (TokenRing).
enum class ContextForm { ring, gather, ring_both_ways, ulysses, token_ring };

// A form, or a product of ulysses and a form: of the ranks along cp, `ulysses` neighbours each exchange heads for positions, and such
// teams attend to each other by `form`. 1: no exchange. With form = ulysses all ranks are one team.
struct ContextMethod {
  ContextForm form = ContextForm::ring;
  int64_t ulysses = 1;
  ContextMethod() = default;
  ContextMethod(ContextForm one) : form(one) {}  // NOLINT: a form is a method
  ContextMethod(ContextForm one, int64_t neighbours) : form(one), ulysses(neighbours) {}
  bool operator==(const ContextMethod&) const = default;
};

// Mistakes that a test can plant, as data, to see that it finds them.
struct ContextMistakes {
  bool skip_merge = false;  // the first partial result that should be merged into an earlier one is dropped
  bool operator==(const ContextMistakes&) const = default;
};

// As recipes have it: "ring", "token_ring", "ulysses:2,ring:2". The sizes of a product must multiply to `ranks`; 0: not known, not checked.
ContextMethod parse_context_method(std::string_view text, int64_t ranks = 0);
// `ranks`: as many as there are along cp; a form alone needs none.
std::string to_string(const ContextMethod& method, int64_t ranks);

// The words of the forms, in the order in which help lists them.
std::vector<std::string> context_form_words();

// Refuses what cannot work on `ranks` ranks with so many heads on each, and names the nearest that can.
void check(const ContextMethod& method, int64_t ranks, int64_t heads);

}  // namespace cairn::model
