// What the service itself costs: requests over loopback to an engine without a model, each thread one connection that
// is kept alive. Server and clients share the machine, so the figures are lower bounds of the server's.
//
//   build/release/bench/bench_serve            items_per_second = requests, real_time = latency of one
//   build/release/bench/bench_serve PORT       nothing but the server, for clients of other programs (bench/peers)

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "serve/server.h"
#include "serve/testing/null_engine.h"

namespace deepinfer::serve {
namespace {

// One server for all benchmarks; lives until the process ends.
class Instance {
 public:
  explicit Instance(int port) : tokenizer_(*text::Tokenizer::load(DI_SOURCE_DIR "/models/tiny")) {
    ServeOptions options;
    options.addresses = {{.host = "127.0.0.1", .port = port}};
    options.access_log = "off";
    options.max_requests = 1 << 20;
    auto server = Server::create(options);
    DI_CHECK(server.has_value(), "{}", server.error().message);
    server_ = std::move(*server);
    std::string url = server_->urls().front();
    port_ = std::stoi(url.substr(url.rfind(':') + 1));
    thread_ = std::thread([this] {
      auto done = server_->run([this]() -> Result<LoadedModel> {
        NullEngine::Options o;
        o.answer = [](const Request&) { return std::string("Once upon a time, there was a girl named Rosa."); };
        return LoadedModel{.engine = std::make_unique<NullEngine>(tokenizer_, o),
                           .tokenizer = &tokenizer_,
                           .name = "null",
                           .vocab_size = tokenizer_.num_ids(),
                           .max_running = 1 << 16,
                           .image_token = ""};
      });
      DI_CHECK(done.has_value());
    });
  }
  ~Instance() {
    server_->stop();
    thread_.join();
  }
  void wait() { thread_.join(); }
  int port() const { return port_; }

 private:
  text::Tokenizer tokenizer_;
  std::unique_ptr<Server> server_;
  int port_ = 0;
  std::thread thread_;
};

Instance& instance() {
  static Instance one(0);
  return one;
}

class Client {
 public:
  Client() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(instance().port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    DI_CHECK(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    int yes = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  ~Client() { ::close(fd_); }

  // Sends and reads until `end`, which only an answer's end holds.
  std::string exchange(const std::string& request, std::string_view end) {
    DI_CHECK(::send(fd_, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
    std::string answer;
    char piece[16384];
    while (answer.find(end) == answer.npos) {
      ssize_t n = ::recv(fd_, piece, sizeof piece, 0);
      DI_CHECK(n > 0, "the server closed the connection");
      answer.append(piece, static_cast<std::size_t>(n));
    }
    return answer;
  }
  std::string ask(const std::string& request, std::string_view end) {
    std::string answer = exchange(request, end);
    DI_CHECK(answer.starts_with("HTTP/1.1 200"), "{}", answer);
    return answer;
  }

 private:
  int fd_;
};

std::string post(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

// SIGTERM ends the process.
[[noreturn]] void serve_until_ended(int port) {
  Instance server(port);
  server.wait();
  std::_Exit(0);
}

void wait_until_ready() {
  const std::string request = "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n";
  Client client;
  while (client.exchange(request, "\"}").find("\"ready\"") == std::string::npos) std::this_thread::yield();
}

void measure(benchmark::State& state, const std::string& request, std::string_view end) {
  Client client;
  for (auto _ : state) benchmark::DoNotOptimize(client.ask(request, end));
  state.SetItemsProcessed(state.iterations());
}

const std::string kMessages =
    R"("messages": [{"role": "user", "content": "Tell me a story about a girl named Rosa."}])";

void BM_Health(benchmark::State& state) {
  measure(state, "GET /live HTTP/1.1\r\nHost: x\r\n\r\n", "\"live\"}");
}
void BM_ChatOneToken(benchmark::State& state) {
  measure(state, post("/v1/chat/completions", "{" + kMessages + R"(, "max_tokens": 1})"), "\"usage\"");
}
void BM_ChatWhole(benchmark::State& state) {
  measure(state, post("/v1/chat/completions", "{" + kMessages + R"(, "thinking": {"type": "disabled"}})"), "\"usage\"");
}
void BM_ChatStream(benchmark::State& state) {
  measure(state, post("/v1/chat/completions", "{" + kMessages + R"(, "stream": true})"), "[DONE]\n\n\r\n0\r\n\r\n");
}

BENCHMARK(BM_Health)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(BM_ChatOneToken)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(BM_ChatWhole)->ThreadRange(1, 16)->UseRealTime();
BENCHMARK(BM_ChatStream)->ThreadRange(1, 16)->UseRealTime();

}  // namespace
}  // namespace deepinfer::serve

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc == 2) deepinfer::serve::serve_until_ended(std::atoi(argv[1]));
  deepinfer::serve::wait_until_ready();
  benchmark::RunSpecifiedBenchmarks();
}
