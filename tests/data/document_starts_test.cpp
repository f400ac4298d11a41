#include "data/samples/document_starts.h"

#include <gtest/gtest.h>

#include "kernels/aten.h"

namespace cairn::data {
namespace {

mesh::Batch batch_with(std::vector<int64_t> documents, int64_t length) {
  mesh::Batch batch;
  batch.fields["documents"] = {at::tensor(documents, at::kLong).view({-1, length}), mesh::Field::Shape::per_sample};
  return batch;
}

TEST(DocumentStarts, AreWhereAnotherDocumentBegins) {
  mesh::Batch batch = batch_with({7, 7, 8, 8, -1, 3, 3, 3, 3, 3, 1, 2, 3, 4, -1}, 5);
  add_document_starts(batch);
  const at::Tensor expected = at::full({3, 8}, 5, at::kInt);  // the next power of two
  expected.narrow(1, 0, 5).copy_(at::tensor({0, 2, 4, 5, 5, 0, 5, 5, 5, 5, 0, 1, 2, 3, 4}, at::kInt).view({3, 5}));
  EXPECT_TRUE(at::equal(batch.field("document_starts"), expected));
  EXPECT_EQ(batch.field("documents_counted").size(0), 16);  // 9 documents
  batch.ids = at::zeros({3}, at::kLong);
  EXPECT_EQ(mesh::slice(batch, 1, 2).field("documents_counted").size(0), 16);
}

TEST(DocumentStarts, OfOneDocumentARowAreOneARow) {
  mesh::Batch batch = batch_with({7, 7, 8, 8}, 2);
  add_document_starts(batch);
  EXPECT_TRUE(at::equal(batch.field("document_starts"), at::zeros({2, 1}, at::kInt)));
}

TEST(DocumentStarts, AreNoneWhereADocumentIsInTwoPieces) {
  mesh::Batch batch = batch_with({7, 8, 7}, 3), none;
  add_document_starts(batch);
  EXPECT_EQ(batch.field("document_starts").sizes(), (std::vector<int64_t>{1, 0}));
  add_document_starts(none);
  EXPECT_TRUE(none.fields.empty());
}

}  // namespace
}  // namespace cairn::data
