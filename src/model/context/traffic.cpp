// The graph of one call, form by form. Bytes of the messages, with S_o the keys and values of coordinate o (2 batch held(o) kv_heads
// head_dim element_bytes), D_o its documents (8 batch held(o)), G_o the gradients of its keys and values (as S_o, in at least 4 bytes):
//
//   gather      forward (n-1) sum (S_o + D_o); backward (n-1) sum (S_o + D_o + G_o)
//   ring        forward sum last_o (S_o + D_o); backward sum (last_o (S_o + D_o) + (last_o - first_o + 1) G_o), where the coordinates that
//               see keys of o are first_o to last_o steps from it along the ring. Where every coordinate sees every other's (zigzag without
//               a window, or no causal mask) that is what gather sends; contiguous splits send half of it, short windows less.
//   both ways   the same of each half of the blocks in its direction
//   token_ring  forward: queries by the rows that travel each hop, outputs and log-sum-exps by the rows that saw a key; backward: queries,
//               gradients of outputs and two numbers per head on the same hops, gradients of queries in at least 4 bytes
//   ulysses     within teams: the heads of q, k, v that each member needs, outputs and log-sum-exps back; backward twice as much
#include "model/context/traffic.h"

#include <algorithm>
#include <numeric>

#include "kernels/attention.h"
#include "model/context/forms.h"

namespace cairn::model {
namespace {

using Tasks = std::vector<size_t>;

class Graph {
 public:
  Graph(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& queries, const ContextSplit& split,
        bool backward, std::vector<int> ranks, std::vector<ContextTask>& tasks, std::vector<Tasks> begin)
      : sizes_(sizes),
        options_(options),
        queries_(queries),
        split_(split),
        backward_(backward),
        n_(static_cast<int>(split.pieces.size())),
        ranks_(std::move(ranks)),
        tasks_(tasks),
        end_(std::move(begin)) {}

  // Returns, for each coordinate, what its end waits for.
  std::vector<Tasks> add(const ContextMethod& method) {
    if (n_ > 1 && (method.form == ContextForm::ulysses || method.ulysses > 1))
      add_ulysses(method);
    else if (method.form == ContextForm::gather)
      add_gather();
    else if (method.form == ContextForm::token_ring)
      add_token_ring();
    else
      add_rings(method.form == ContextForm::ring_both_ways);
    return end_;
  }

 private:
  int64_t wide_bytes() const { return std::max<int64_t>(4, sizes_.element_bytes); }
  int64_t document_bytes(int64_t rows) const { return sizes_.documents ? 8 * sizes_.batch * rows : 0; }
  int64_t key_bytes(int64_t rows) const { return 2 * sizes_.batch * rows * sizes_.kv_heads * sizes_.head_dim * sizes_.element_bytes; }
  int64_t key_gradient_bytes(int64_t rows) const { return 2 * sizes_.batch * rows * sizes_.kv_heads * sizes_.head_dim * wide_bytes(); }
  int64_t query_bytes(int64_t rows) const { return sizes_.batch * rows * sizes_.heads * sizes_.head_dim * sizes_.element_bytes; }
  // A product of queries and keys and one with values; backward has five.
  double flops(int64_t pairs) const {
    return static_cast<double>(pairs * sizes_.batch * sizes_.heads * sizes_.head_dim) * (backward_ ? 10 : 4);
  }
  int place(int coordinate) const { return ranks_[static_cast<size_t>((coordinate % n_ + n_) % n_)]; }
  size_t at(int coordinate) const { return static_cast<size_t>((coordinate % n_ + n_) % n_); }

  size_t message(int from, int to, int64_t bytes, Tasks after) {
    tasks_.push_back({place(from), place(to), bytes, 0, std::move(after)});
    return tasks_.size() - 1;
  }
  // Keeps the rank busy; it goes on from here.
  void compute(int coordinate, int64_t pairs, Tasks after) {
    Tasks& end = end_[at(coordinate)];
    end.insert(end.end(), after.begin(), after.end());
    tasks_.push_back({place(coordinate), -1, 0, flops(pairs), std::move(end)});
    end = {tasks_.size() - 1};
  }

  // Collectives send to the next coordinate first, then to the one after it, as comm/collectives do.
  void add_gather() {
    std::vector<Tasks> arrived(end_.size());
    for (int distance = 1; distance < n_; ++distance)
      for (int owner = 0; owner < n_; ++owner) {
        const int64_t rows = held(split_, owner);
        arrived[at(owner + distance)].push_back(message(owner, owner + distance, key_bytes(rows) + document_bytes(rows), end_[at(owner)]));
      }
    for (int reader = 0; reader < n_; ++reader) {
      int64_t pairs = 0;
      for (int owner = 0; owner < n_; ++owner) pairs += seen_pairs(options_, queries_, reader, split_, owner);
      compute(reader, pairs, arrived[at(reader)]);
    }
    if (!backward_) return;
    std::vector<Tasks> home(end_.size());
    for (int distance = 1; distance < n_; ++distance)
      for (int reader = 0; reader < n_; ++reader) {
        const size_t owner = at(reader + distance);
        home[owner].push_back(
            message(reader, reader + distance, key_gradient_bytes(held(split_, static_cast<int>(owner))), end_[at(reader)]));
      }
    for (int owner = 0; owner < n_; ++owner) end_[at(owner)] = joined(end_[at(owner)], home[at(owner)]);
  }

  void add_rings(bool both_ways) {
    const std::vector<KeyPart> parts = key_parts(split_, both_ways);
    std::vector<std::vector<ContextRoute>> routes;
    for (const KeyPart& part : parts) routes.push_back(context_routes(queries_, part, options_));
    // What a rank has received, by part: the message of the step before.
    std::vector<std::vector<Tasks>> keys(parts.size(), std::vector<Tasks>(end_.size())), gradients = keys, home = keys;
    for (int step = 0; step <= (backward_ ? n_ : n_ - 1); ++step) {
      std::vector<std::vector<Tasks>> next(parts.size(), std::vector<Tasks>(end_.size()));
      std::vector<Tasks> begin = end_;  // of this step, on each rank: the blocks of all parts are there
      for (size_t p = 0; p < parts.size(); ++p)
        for (int c = 0; c < n_; ++c) begin[at(c)] = joined(begin[at(c)], keys[p][at(c)]);
      for (size_t p = 0; p < parts.size() && step < n_; ++p)
        for (int c = 0; c < n_; ++c) {
          const int owner = c - parts[p].direction * step;
          if (step >= routes[p][at(owner)].last) continue;
          const int64_t rows = held(parts[p].keys, static_cast<int>(at(owner)));
          next[p][at(c + parts[p].direction)] = {message(c, c + parts[p].direction, key_bytes(rows) + document_bytes(rows), begin[at(c)])};
        }
      for (int c = 0; c < n_; ++c) {
        int64_t pairs = 0;
        Tasks after;
        for (size_t p = 0; p < parts.size(); ++p) {
          if (step < n_) pairs += seen_pairs(options_, queries_, c, parts[p].keys, static_cast<int>(at(c - parts[p].direction * step)));
          after = joined(joined(after, keys[p][at(c)]), joined(gradients[p][at(c)], home[p][at(c)]));
          home[p][at(c)].clear();
        }
        compute(c, pairs, after);
      }
      std::vector<std::vector<Tasks>> follow(parts.size(), std::vector<Tasks>(end_.size()));
      for (size_t p = 0; p < parts.size() && backward_ && step > 0 && step < n_; ++p)
        for (int c = 0; c < n_; ++c) {
          const int owner = c - parts[p].direction * step;
          const ContextRoute route = routes[p][at(owner)];
          if (step < route.first || step > route.last) continue;
          const bool last = step == route.last;
          const size_t sent = message(c, last ? owner : c + parts[p].direction,
                                      key_gradient_bytes(held(parts[p].keys, static_cast<int>(at(owner)))), end_[at(c)]);
          if (last)
            home[p][at(owner)].push_back(sent);
          else
            follow[p][at(c + parts[p].direction)] = {sent};
        }
      keys = std::move(next), gradients = std::move(follow);
    }
    for (size_t p = 0; p < parts.size(); ++p)
      for (int c = 0; c < n_; ++c) end_[at(c)] = joined(end_[at(c)], home[p][at(c)]);
  }

  void add_token_ring() {
    const std::vector<QueryRoute> routes = query_routes(queries_, split_, options_);
    const int64_t statistics = sizes_.batch * sizes_.heads * wide_bytes();  // one number per head of a position
    const auto carried = [&](int64_t rows) {
      return document_bytes(rows) + (backward_ ? 2 * query_bytes(rows) + 2 * rows * statistics : query_bytes(rows));
    };
    const auto returned = [&](int64_t rows) {
      return backward_ ? sizes_.batch * rows * sizes_.heads * sizes_.head_dim * wide_bytes() : query_bytes(rows) + rows * statistics;
    };
    std::vector<Tasks> queries(end_.size()), home(end_.size());
    for (int step = 0; step < n_; ++step) {
      std::vector<Tasks> next(end_.size());
      for (int c = 0; c < n_; ++c) {
        const QueryRoute& route = routes[at(c + step)];
        if (step + 1 > route.last) continue;
        next[at(c - 1)] = {
            message(c, c - 1, carried(rows_of(route.carried[static_cast<size_t>(step) + 1])), joined(end_[at(c)], queries[at(c)]))};
      }
      for (int c = 0; c < n_; ++c) compute(c, seen_pairs(options_, queries_, static_cast<int>(at(c + step)), split_, c), queries[at(c)]);
      for (int c = 0; c < n_ && step > 0; ++c) {
        const int64_t rows = rows_of(routes[at(c + step)].seeing[static_cast<size_t>(step)]);
        if (rows > 0) home[at(c + step)].push_back(message(c, c + step, returned(rows), end_[at(c)]));
      }
      queries = std::move(next);
    }
    for (int c = 0; c < n_; ++c) end_[at(c)] = joined(end_[at(c)], home[at(c)]);
  }

  void add_ulysses(const ContextMethod& method) {
    const int team = method.form == ContextForm::ulysses ? n_ : static_cast<int>(method.ulysses);
    std::vector<UlyssesHeads> heads;
    bool overlap = false;
    for (int j = 0; j < team; ++j) {
      heads.push_back(ulysses_heads(sizes_.heads, sizes_.kv_heads, team, j));
      overlap = overlap || (j > 0 && heads[at(j)].first_key < heads[at(j - 1)].first_key + heads[at(j - 1)].keys);
    }
    const auto elements = [&](int64_t rows, int64_t count) { return sizes_.batch * rows * count * sizes_.head_dim; };
    std::vector<Tasks> arrived(end_.size());
    for (int distance = 1; distance < team; ++distance)
      for (int c = 0; c < n_; ++c) {
        const int j = (c + distance) % team, to = c / team * team + j;
        const int64_t rows = held(split_, c), queries = heads[at(j)].queries, keys = heads[at(j)].keys;
        const int64_t statistics = backward_ ? 2 * sizes_.batch * rows * queries * wide_bytes() : 0;
        arrived[at(to)].push_back(message(
            c, to, elements(rows, (backward_ ? 2 : 1) * queries + 2 * keys) * sizes_.element_bytes + statistics + document_bytes(rows),
            end_[at(c)]));
      }
    for (int c = 0; c < n_; ++c) end_[at(c)] = joined(end_[at(c)], arrived[at(c)]);
    const ContextSplit between = team_split(split_, team);
    for (int j = 0; j < team; ++j) {
      ContextSizes inner = sizes_;
      inner.heads = heads[at(j)].queries;
      inner.kv_heads = heads[at(j)].repeated ? inner.heads : heads[at(j)].keys;
      std::vector<int> ranks;
      std::vector<Tasks> begin;
      for (int c = j; c < n_; c += team) ranks.push_back(place(c)), begin.push_back(end_[at(c)]);
      Graph graph(inner, options_, between, between, backward_, ranks, tasks_, begin);
      const std::vector<Tasks> ends = graph.add(n_ == team ? ContextForm::gather : method.form);
      for (int c = j, o = 0; c < n_; c += team, ++o) end_[at(c)] = ends[static_cast<size_t>(o)];
    }
    std::vector<Tasks> back(end_.size());
    for (int distance = 1; distance < team; ++distance)
      for (int from = 0; from < n_; ++from) {
        const int j = from % team, c = from / team * team + (j + distance) % team;
        const int64_t rows = held(split_, c), queries = heads[at(j)].queries, keys = heads[at(j)].keys;
        const int64_t bytes = backward_ ? elements(rows, queries + 2 * keys) * (overlap ? wide_bytes() : sizes_.element_bytes)
                                        : elements(rows, queries) * sizes_.element_bytes + sizes_.batch * rows * queries * wide_bytes();
        back[at(c)].push_back(message(from, c, bytes, end_[at(from)]));
      }
    for (int c = 0; c < n_; ++c) end_[at(c)] = joined(end_[at(c)], back[at(c)]);
  }

  static Tasks joined(Tasks a, const Tasks& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  ContextSizes sizes_;
  const kernels::AttentionOptions& options_;
  const ContextSplit& queries_;
  const ContextSplit& split_;  // of the keys
  bool backward_;
  int n_;
  std::vector<int> ranks_;
  std::vector<ContextTask>& tasks_;
  std::vector<Tasks> end_;  // of each coordinate: what its next task waits for
};

}  // namespace

int64_t seen_pairs(const kernels::AttentionOptions& options, const ContextSplit& queries, int reader, const ContextSplit& keys, int owner) {
  int64_t pairs = 0;
  for (const Segment& here : segments(queries, reader))
    for (const Segment& there : segments(keys, owner)) pairs += seen_pairs(options, here.positions, there.positions);
  return pairs;
}

std::vector<ContextTask> context_tasks(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                                       const ContextMethod& method, bool backward, const ContextSplit* queries) {
  const size_t n = split.pieces.size();
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  ContextSizes whole = sizes;
  if (whole.heads == 0) whole.heads = whole.kv_heads;
  std::vector<ContextTask> tasks;
  Graph(whole, options, queries ? *queries : split, split, backward, ranks, tasks, std::vector<Tasks>(n)).add(method);
  return tasks;
}

ContextBytes context_bytes(const ContextSizes& sizes, const kernels::AttentionOptions& options, const ContextSplit& split,
                           const ContextMethod& method) {
  const auto sum = [&](bool backward) {
    int64_t bytes = 0;
    for (const ContextTask& task : context_tasks(sizes, options, split, method, backward)) bytes += task.bytes;
    return bytes;
  };
  return {sum(false), sum(true)};
}

}  // namespace cairn::model
