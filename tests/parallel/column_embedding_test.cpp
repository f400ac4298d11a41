#include "parallel/column_embedding.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "comm/world.h"
#include "harness/ranks.h"
#include "kernels/aten.h"

namespace cairn::parallel {
namespace {

at::Tensor values(std::vector<int64_t> shape, uint64_t seed) {
  const at::Tensor x = at::empty(shape, at::kFloat);
  base::Random(seed).fill_normal({x.data_ptr<float>(), static_cast<size_t>(x.numel())});
  return x;
}

at::Tensor tokens(int64_t count, int64_t vocab, uint64_t seed) {
  const at::Tensor ids = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i)
    ids[i] = static_cast<int64_t>(base::Random(seed).below(static_cast<uint64_t>(i), static_cast<uint64_t>(vocab)));
  return ids;
}

// Against a replicated table whose gradient is summed over all ranks.
TEST(ColumnEmbedding, EqualsAReplicatedTableAndAnAllReduce) {
  constexpr int64_t kVocab = 37;
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const int64_t width : {1, 7, 12, 20}) {
      const at::Tensor table = values({kVocab, width}, 1);
      std::vector<int64_t> rows;
      for (int rank = 0; rank < ranks; ++rank) rows.push_back(rank == 2 ? 0 : 11 + 3 * rank);
      harness::on_ranks(ranks, [&](comm::World& world) {
        const auto me = static_cast<size_t>(world.rank());
        const ColumnEmbedding columns(world.everyone(), width);
        const at::Tensor shard = columns.shard_of(table), ids = tokens(rows[me], kVocab, 10 + me), dy = values({rows[me], width}, 20 + me);
        EXPECT_EQ(shard.size(1), (width + ranks - 1) / ranks);
        EXPECT_TRUE(at::equal(columns.gather(shard), table));
        at::Tensor all_ids;
        const at::Tensor y = columns.forward(ids, shard, rows, all_ids);
        EXPECT_TRUE(at::equal(y, table.index_select(0, ids)));

        const at::Tensor dtable = at::zeros_like(table), dshard = at::zeros_like(shard);
        dtable.index_add_(0, ids, dy);
        world.everyone().all_reduce(dtable, comm::Reduce::sum, {comm::Purpose::gradient, "reference"}).wait();
        columns.backward(dshard, all_ids, dy, rows);
        EXPECT_TRUE(at::allclose(columns.gather(dshard), dtable, 0, 1e-6)) << ranks << " ranks, width " << width;
        columns.backward(dshard, all_ids, dy, rows);  // adds
        EXPECT_TRUE(at::allclose(columns.gather(dshard), 2 * dtable, 0, 1e-5));
      });
    }
  }
}

TEST(ColumnEmbedding, SendsIdsAndTwiceItsRowsAndNoTable) {
  const at::Tensor table = values({1000, 8}, 1);
  const std::vector<int64_t> rows{3, 3, 3, 3};
  const harness::Run run = harness::on_ranks(4, [&](comm::World& world) {
    const ColumnEmbedding columns(world.everyone(), 8);
    const at::Tensor shard = columns.shard_of(table), dshard = at::zeros_like(shard);
    at::Tensor all_ids;
    const at::Tensor y = columns.forward(tokens(3, 1000, 5), shard, rows, all_ids);
    columns.backward(dshard, all_ids, y, rows);
  });
  EXPECT_EQ(run.ledger.bytes_sent(1, comm::Purpose::data), 3 * 3 * 8);            // its ids to the others
  EXPECT_EQ(run.ledger.bytes_sent(1, comm::Purpose::activation), 3 * 3 * 2 * 4);  // two columns for each row of the others
  EXPECT_EQ(run.ledger.bytes_sent(1, comm::Purpose::gradient), 3 * 3 * 2 * 4);
}

}  // namespace
}  // namespace cairn::parallel
