// A running server: the loop, the listeners, the service, and its life from start to end.
//
//   create: bind, read keys   ->  run: the model is made on a thread of its own, /ready says 503 meanwhile
//   ->  warm: ready           ->  SIGTERM or SIGINT: drain, then run returns  ->  a second one: the process ends at
//   once SIGHUP: keys and certificate are read anew; what cannot be read leaves the old ones in force.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/model.h"
#include "serve/options.h"
#include "text/tokenizer.h"

namespace deepinfer::serve {

// What is served. The engine is whatever implements the interface.
struct LoadedModel {
  std::unique_ptr<Engine> engine;
  const text::Tokenizer* tokenizer = nullptr;  // lives as long as the engine
  std::string name;
  int vocab_size = 0;
  int max_running = 0;  // sequences that run together; 0: not known
  std::string image_token;
  std::string namespace_digest;  // Model's
};

class Server {
 public:
  // Fails if an address cannot be bound or a file cannot be read.
  static Result<std::unique_ptr<Server>> create(const ServeOptions& options);
  virtual ~Server() = default;

  virtual std::vector<std::string> urls() const = 0;
  virtual std::vector<std::string> admin_urls() const = 0;
  // Serves until a signal ends it. `load` runs on a thread of its own; its failure is returned.
  virtual Result<void> run(std::function<Result<LoadedModel>()> load) = 0;
  // As the first signal does. From any thread.
  virtual void stop() = 0;
};

}  // namespace deepinfer::serve
