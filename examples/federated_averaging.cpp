// Federated averaging (McMahan et al., arXiv:1602.05629): clients train on what only they have, and a server
// averages their parameters. Each of the ten clients has points of two of the ten classes.
// Target: 0.9 of the accuracy of one model trained on all points together.
#include "examples/blobs.h"
#include "examples/examples.h"
#include "task/trainer.h"

namespace cairn::examples {

Outcome federated_averaging(task::Deployer& deployer, bool quick) {
  constexpr int64_t kClients = 10;
  const base::Random centres = deployer.random("centres");
  const auto all = blobs(centres, deployer.random("training"), quick ? 400 : 2000, kClients, 16, 4);
  const auto test = blobs(centres, deployer.random("test"), 1000, kClients, 16, 4);
  std::vector<std::vector<Point>> clients(kClients);
  for (size_t i = 0; i < all.size(); ++i) {  // classes c and c + 1 to client c, unequally many of them
    const auto c = static_cast<size_t>(all[i].label);
    clients[i % 3 == 0 ? (c + kClients - 1) % kClients : c].push_back(all[i]);
  }

  const int64_t rounds = quick ? 2 : 20;
  task::TrainerOptions options{.name = "client", .per_device_batch = 8};
  options.optimizer = "sgd";
  options.learning_rate = 0.1;
  options.schedule = "constant";
  task::Params server = task::mlp({16, 64, kClients}, deployer.random("start"));
  const task::Params start = server;
  task::Trainer client(deployer, classification(), server, options);
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<task::Params> found;
    std::vector<double> weights;
    for (const std::vector<Point>& own : clients) {
      client.reset(server);
      client.fit(own);
      found.push_back(client.params());
      weights.push_back(static_cast<double>(own.size()));
    }
    server = task::average(found, weights);
  }
  client.reset(server);

  options.name = "pooled";
  options.epochs = rounds;
  task::Trainer pooled(deployer, classification(), start, options);
  pooled.fit(all);
  const double together = pooled.evaluate(test).at("accuracy");
  const double averaged = client.evaluate(test).at("accuracy");
  return {"accuracy, against training on all points together", averaged, together, 0.9 * together, /*at_most=*/false};
}

}  // namespace cairn::examples
