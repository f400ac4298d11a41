#pragma once

namespace cairn::cli {

struct EvalArguments;

// `cairn eval DIR --retrieval FOLDER`: encodes the collection and the queries with judgements, and searches exactly.
int eval_retrieval(const EvalArguments& a);

}  // namespace cairn::cli
