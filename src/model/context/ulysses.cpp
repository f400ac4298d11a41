// Ulysses: the ranks of a team exchange heads for positions, so that each attends over all positions of the team with its part of the
// heads. Where the team is the whole group, that is attention on one rank: keys in the order of the sequence, nothing to merge. Otherwise
// the teams attend to each other in another form, each member with the member of the same number in the other teams.
//
//   forward   q, k, v    [batch, own positions, all heads] --all-to-all--> [batch, the team's positions, own heads];  out, lse back
//   backward  q, k, v, dout, lse, delta the same way;  dq, dk, dv back
//
// A rank gets the key heads that its query heads read. Where query heads of several ranks read one key head, all of them get it, and the
// owner of its positions adds up their gradients, in fp32.
#include <algorithm>
#include <array>
#include <numeric>

#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/low_precision.h"
#include "model/context/attention.h"
#include "model/context/forms.h"

namespace cairn::model {
namespace {

// The ranks that exchange heads for positions, and those that this one attends to afterwards.
struct Teams {
  comm::Group& team;
  comm::Group& others;
  ContextSplit split;         // among teams
  std::vector<int64_t> held;  // positions of each member of this team
  int64_t positions = 0;      // of all of them

  static Teams of(const ContextCall& call, int64_t ulysses) {
    const int size = static_cast<int>(ulysses), me = call.group.rank(), first = me / size * size;
    std::vector<int> team, others;
    for (int i = 0; i < size; ++i) team.push_back(call.group.ranks()[static_cast<size_t>(first + i)]);
    for (int i = me % size; i < call.group.size(); i += size) others.push_back(call.group.ranks()[static_cast<size_t>(i)]);
    comm::World& world = call.group.world();
    Teams teams{world.group(team, "ulysses"), world.group(others, "between teams"), team_split(call.split, ulysses), {}, 0};
    for (int i = 0; i < size; ++i) teams.held.push_back(model::held(call.split, first + i));
    teams.positions = std::accumulate(teams.held.begin(), teams.held.end(), int64_t{0});
    return teams;
  }
};

// One tensor of the exchange, and which of its heads each member has: [batch, positions, heads, width].
struct Exchanged {
  at::Tensor x;
  std::vector<mesh::Interval> heads;  // by member
};

int64_t width_of(const std::vector<Exchanged>& all, size_t member) {
  int64_t width = 0;
  for (const Exchanged& one : all) width += one.heads[member].length() * one.x.size(3);
  return width;
}

// From own positions and all heads to the team's positions and own heads. Returns each tensor as [batch, positions, own heads, width],
// views of one buffer of the dtype of the first.
std::vector<at::Tensor> to_heads(const std::vector<Exchanged>& all, const Teams& teams, comm::Label label) {
  const auto me = static_cast<size_t>(teams.team.rank());
  const int64_t batch = all[0].x.size(0), local = all[0].x.size(1), own = width_of(all, me);
  std::vector<int64_t> in_counts, out_counts;
  for (size_t j = 0; j < teams.held.size(); ++j) {
    in_counts.push_back(local * batch * width_of(all, j));
    out_counts.push_back(teams.held[j] * batch * own);
  }
  const at::Tensor in = at::empty({std::accumulate(in_counts.begin(), in_counts.end(), int64_t{0})}, all[0].x.options());
  const at::Tensor out = at::empty({teams.positions, batch, own}, in.options());
  int64_t at = 0;
  for (size_t j = 0; j < teams.held.size(); ++j) {
    const at::Tensor part = in.narrow(0, at, in_counts[j]).view({local, batch, width_of(all, j)});
    at += in_counts[j];
    int64_t column = 0;
    for (const auto& [x, heads] : all) {
      const int64_t count = heads[j].length(), width = x.size(3);
      part.narrow(2, column, count * width).view({local, batch, count, width}).copy_(x.narrow(2, heads[j].begin, count).transpose(0, 1));
      column += count * width;
    }
  }
  teams.team.all_to_all(out, in, label, out_counts, in_counts).wait();
  std::vector<at::Tensor> found;
  int64_t column = 0;
  for (const auto& [x, heads] : all) {
    const int64_t count = heads[me].length(), width = x.size(3);
    found.push_back(out.narrow(2, column, count * width).view({teams.positions, batch, count, width}).transpose(0, 1));
    column += count * width;
  }
  return found;
}

// The way back: `mine` are [batch, the team's positions, own heads, width] of one dtype; `take` gets what each member made of one tensor
// for this rank's positions, [batch, own positions, that member's heads, width].
template <typename Take>
void to_positions(const std::vector<at::Tensor>& mine, const std::vector<std::vector<mesh::Interval>>& heads, int64_t local,
                  const Teams& teams, comm::Label label, const Take& take) {
  const auto me = static_cast<size_t>(teams.team.rank());
  const int64_t batch = mine[0].size(0);
  const auto width = [&](size_t member) {
    int64_t sum = 0;
    for (size_t t = 0; t < mine.size(); ++t) sum += heads[t][member].length() * mine[t].size(3);
    return sum;
  };
  std::vector<int64_t> in_counts, out_counts;
  for (size_t j = 0; j < teams.held.size(); ++j) {
    in_counts.push_back(teams.held[j] * batch * width(me));
    out_counts.push_back(local * batch * width(j));
  }
  const at::Tensor in = at::empty({teams.positions, batch, width(me)}, mine[0].options());
  const at::Tensor out = at::empty({std::accumulate(out_counts.begin(), out_counts.end(), int64_t{0})}, in.options());
  int64_t column = 0;
  for (const at::Tensor& x : mine) {
    const int64_t count = x.size(2) * x.size(3);
    in.narrow(2, column, count).view({teams.positions, batch, x.size(2), x.size(3)}).copy_(x.transpose(0, 1));
    column += count;
  }
  teams.team.all_to_all(out, in, label, out_counts, in_counts).wait();
  int64_t at = 0;
  for (size_t j = 0; j < teams.held.size(); ++j) {
    const at::Tensor part = out.narrow(0, at, out_counts[j]).view({local, batch, width(j)});
    at += out_counts[j], column = 0;
    for (size_t t = 0; t < mine.size(); ++t) {
      const int64_t count = heads[t][j].length(), each = mine[t].size(3);
      take(t, j, part.narrow(2, column, count * each).view({local, batch, count, each}).transpose(0, 1));
      column += count * each;
    }
  }
}

// Which heads each member has.
struct HeadTable {
  std::vector<UlyssesHeads> members;
  std::vector<mesh::Interval> queries, keys;
  bool keys_overlap = false;  // some key head is of several members

  HeadTable(int64_t heads, int64_t kv_heads, int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const UlyssesHeads one = ulysses_heads(heads, kv_heads, ranks, rank);
      keys_overlap = keys_overlap || (!keys.empty() && one.first_key < keys.back().end);
      members.push_back(one);
      queries.push_back({one.first_query, one.first_query + one.queries});
      keys.push_back({one.first_key, one.first_key + one.keys});
    }
  }
};

// The key head of each query head, where they are repeated: an index into the rank's key heads.
at::Tensor repeat_index(const UlyssesHeads& own, int64_t group, at::Device device) {
  std::vector<int64_t> index;
  for (int64_t i = 0; i < own.queries; ++i) index.push_back((own.first_query + i) / group - own.first_key);
  return at::tensor(index, at::TensorOptions().dtype(at::kLong)).to(device);
}

at::Tensor team_documents(const ContextCall& call, const Teams& teams) {
  if (!call.queries.documents.defined()) return {};
  const int64_t batch = call.k.size(0);
  const at::Tensor mine = call.queries.documents.transpose(0, 1).contiguous(), all = at::empty({teams.positions, batch}, mine.options());
  std::vector<int64_t> counts;
  for (const int64_t held : teams.held) counts.push_back(held * batch);
  teams.team.all_gather(all, mine, {comm::Purpose::activation, "documents"}, counts).wait();
  return all.transpose(0, 1).contiguous();
}

// Between teams. A team that is alone attends by the form that merges nothing.
ContextMethod between(const ContextMethod& method, const Teams& teams) {
  return teams.others.size() == 1 ? ContextForm::gather : ContextMethod(method.form);
}

int64_t team_size(const ContextMethod& method, const ContextCall& call) {
  return method.form == ContextForm::ulysses ? call.group.size() : method.ulysses;
}

}  // namespace

UlyssesHeads ulysses_heads(int64_t heads, int64_t kv_heads, int64_t ranks, int64_t rank) {
  const int64_t each = heads / ranks, group = heads / kv_heads;
  UlyssesHeads found{.queries = each, .first_query = rank * each};
  found.first_key = found.first_query / group;
  found.keys = (found.first_query + each - 1) / group + 1 - found.first_key;
  found.repeated = each % group != 0 && group % each != 0;
  return found;
}

ContextSplit team_split(const ContextSplit& split, int64_t ulysses) {
  ContextSplit teams{split.length, {}};
  for (size_t c = 0; c < split.pieces.size(); ++c) {
    if (static_cast<int64_t>(c) % ulysses == 0) teams.pieces.emplace_back();
    teams.pieces.back().insert(teams.pieces.back().end(), split.pieces[c].begin(), split.pieces[c].end());
  }
  return teams;
}

void ulysses_forward(const at::Tensor& out, const at::Tensor& lse, const at::Tensor& q, const ContextCall& call,
                     const ContextMethod& method) {
  const Teams teams = Teams::of(call, team_size(method, call));
  const HeadTable table(q.size(2), call.k.size(2), teams.team.size());
  const UlyssesHeads& own = table.members[static_cast<size_t>(teams.team.rank())];
  const at::Tensor documents = team_documents(call, teams);
  const std::vector<at::Tensor> here =
      to_heads({{q, table.queries}, {call.k, table.keys}, {call.v, table.keys}}, teams, {comm::Purpose::activation, "heads"});
  at::Tensor k = here[1], v = here[2];
  if (own.repeated) {
    const at::Tensor index = repeat_index(own, q.size(2) / call.k.size(2), k.device());
    k = k.index_select(2, index), v = v.index_select(2, index);
  }
  const at::Tensor mixed = at::empty({q.size(0), teams.positions, own.queries, q.size(3)}, q.options());
  const at::Tensor sums = at::empty({q.size(0), own.queries, teams.positions}, lse.options());
  context_attention(mixed, sums, here[0], k, v, call.queries.options, documents.defined() ? &documents : nullptr, teams.others, teams.split,
                    between(method, teams), call.queries.mistakes, call.after_kernel);
  const auto heads_of = [&](size_t member) { return table.queries[member]; };
  to_positions(
      {mixed}, {table.queries}, q.size(1), teams, {comm::Purpose::activation, "outputs of heads"},
      [&](size_t, size_t member, const at::Tensor& part) { out.narrow(2, heads_of(member).begin, heads_of(member).length()).copy_(part); });
  to_positions({sums.transpose(1, 2).unsqueeze(3)}, {table.queries}, q.size(1), teams, {comm::Purpose::activation, "log-sum-exps of heads"},
               [&](size_t, size_t member, const at::Tensor& part) {
                 lse.narrow(1, heads_of(member).begin, heads_of(member).length()).copy_(part.squeeze(3).transpose(1, 2));
               });
}

void ulysses_backward(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv, const ContextGradientInputs& inputs,
                      const ContextCall& call, const ContextMethod& method) {
  const at::Tensor& q = inputs.q;
  const Teams teams = Teams::of(call, team_size(method, call));
  const HeadTable table(q.size(2), call.k.size(2), teams.team.size());
  const UlyssesHeads& own = table.members[static_cast<size_t>(teams.team.rank())];
  const at::Tensor documents = team_documents(call, teams);
  const std::vector<at::Tensor> here =
      to_heads({{q, table.queries}, {inputs.dout, table.queries}, {call.k, table.keys}, {call.v, table.keys}}, teams,
               {comm::Purpose::activation, "heads and gradients of outputs"});
  const at::Tensor delta = row_sums(inputs.dout, inputs.out);  // [batch, positions, heads]
  const at::Tensor statistics = at::stack({inputs.lse.transpose(1, 2), delta.to(inputs.lse.scalar_type())}, 3);
  const at::Tensor own_statistics =
      to_heads({{statistics, table.queries}}, teams, {comm::Purpose::activation, "log-sum-exps and row sums"})[0];
  at::Tensor k = here[2], v = here[3], index;
  if (own.repeated) {
    index = repeat_index(own, q.size(2) / call.k.size(2), k.device());
    k = k.index_select(2, index), v = v.index_select(2, index);
  }
  const at::TensorOptions wide = kernels::is_half_precision(q) ? q.options().dtype(at::kFloat) : q.options();
  const std::array<at::Tensor, 3> found{at::empty(here[0].sizes(), wide), at::empty(k.sizes(), wide), at::empty(v.sizes(), wide)};
  context_attention_backward(found[0], found[1], found[2], here[1], here[0], k, v, stand_in_for_out(here[1], own_statistics.select(3, 1)),
                             own_statistics.select(3, 0).transpose(1, 2).contiguous(), call.queries.options,
                             documents.defined() ? &documents : nullptr, teams.others, teams.split, between(method, teams),
                             call.after_kernel);
  at::Tensor own_dk = found[1], own_dv = found[2];
  if (own.repeated) {
    own_dk = at::zeros(here[2].sizes(), wide).index_add_(2, index, found[1]);
    own_dv = at::zeros(here[3].sizes(), wide).index_add_(2, index, found[2]);
  }
  // Gradients that no other rank adds to travel in the dtype of their tensors.
  const at::ScalarType dtype = table.keys_overlap ? own_dk.scalar_type() : q.scalar_type();
  const std::array<at::Tensor, 3> into{dq, table.keys_overlap ? at::zeros(dk.sizes(), wide) : dk,
                                       table.keys_overlap ? at::zeros(dv.sizes(), wide) : dv};
  const std::vector<std::vector<mesh::Interval>> heads{table.queries, table.keys, table.keys};
  to_positions({found[0].to(dtype), own_dk.to(dtype), own_dv.to(dtype)}, heads, q.size(1), teams,
               {comm::Purpose::activation, "gradients of heads"}, [&](size_t which, size_t member, const at::Tensor& part) {
                 const mesh::Interval mine = heads[which][member];
                 const at::Tensor to = into[which].narrow(2, mine.begin, mine.length());
                 which > 0 && table.keys_overlap ? to.add_(part) : to.copy_(part);
               });
  if (!table.keys_overlap) return;
  dk.copy_(into[1]);
  dv.copy_(into[2]);
}

}  // namespace cairn::model
