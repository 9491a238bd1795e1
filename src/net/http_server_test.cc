// The HTTP server over real sockets: a blocking client on the test's thread, the loop on another.

#include "net/http_server.h"

#include <atomic>
#include <future>
#include <thread>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace deepinfer::net {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class Fixture {
 public:
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;

  explicit Fixture(Handler handler, HttpLimits limits = {}) : loop_(1) {
    HttpServerOptions o{
        .addresses = {{.host = "127.0.0.1", .port = 0}},
        .limits = limits,
        .handler = std::move(handler),
        .refuse = [](int status, const std::string& m) { return HttpResponse{.status = status, .body = m}; }};
    server_ = std::move(*HttpServer::create(loop_, std::move(o)));
    std::string url = server_->urls()[0];
    port_ = std::stoi(url.substr(url.rfind(':') + 1));
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Fixture() {
    loop_.stop();
    thread_.join();
  }

  // Runs on the loop and returns what it gives.
  template <typename F>
  auto on_loop(F f) {
    std::promise<decltype(f())> result;
    loop_.post([&] { result.set_value(f()); });
    return result.get_future().get();
  }
  int num_connections() {
    return on_loop([this] { return server_->num_connections(); });
  }
  void stop_keeping_alive() {
    on_loop([this] {
      server_->stop_keeping_alive();
      return 0;
    });
  }
  int connect() const {
    int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }

 private:
  Loop loop_;
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::thread thread_;
};

void send_all(int fd, std::string_view data) {
  while (!data.empty()) {
    ssize_t n = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // refused before all of it was read
    data.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string read_to_end(int fd) {
  std::string out;
  char piece[4096];
  while (true) {
    ssize_t n = ::recv(fd, piece, sizeof piece, 0);
    if (n <= 0) break;
    out.append(piece, static_cast<std::size_t>(n));
  }
  ::close(fd);
  return out;
}

std::string ask(const Fixture& f, std::string_view data) {
  int fd = f.connect();
  send_all(fd, data);
  return read_to_end(fd);
}

void echo(std::shared_ptr<Exchange> e) {
  e->respond({.body = e->request.method + " " + e->request.path + "?" + e->request.query + " " + e->request.body});
}

TEST(HttpServer, ReadsBodiesOfBothKindsHoweverTheyAreCut) {
  Fixture f(echo);
  std::string data =
      "POST /a%20b?q=1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
      "POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  for (std::size_t cut = 1; cut < data.size(); cut += 7) {
    int fd = f.connect();
    send_all(fd, data.substr(0, cut));
    std::this_thread::yield();
    send_all(fd, data.substr(cut));
    std::string answer = read_to_end(fd);
    EXPECT_THAT(answer, AllOf(HasSubstr("POST /a b?q=1 hello"), EndsWith("POST /c? abcde"))) << cut;
  }
}

TEST(HttpServer, StreamsInChunksOrUntilTheEndForOldClients) {
  Fixture f([](std::shared_ptr<Exchange> e) {
    e->start(200, {{"X-A", "line\r\nbreak"}});
    e->write("one");
    e->write("");
    e->write("two");
    e->finish();
    e->write("too late");
  });
  EXPECT_THAT(ask(f, "GET / HTTP/1.1\r\nConnection: close\r\n\r\n"),
              AllOf(HasSubstr("X-A: line  break\r\n"), EndsWith("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")));
  EXPECT_THAT(ask(f, "GET / HTTP/1.0\r\n\r\n"), EndsWith("\r\n\r\nonetwo"));
}

TEST(HttpServer, RefusesWhatIsTooLargeWithAnAnswer) {
  Fixture f(echo, {.max_body_bytes = 1000, .max_total_body_bytes = 600, .max_header_bytes = 1000});
  EXPECT_THAT(ask(f, "POST / HTTP/1.1\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x')),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(ask(f, "GET / HTTP/1.1\r\nX: " + std::string(2000, 'x')), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(ask(f, "POST / HTTP/1.1\r\nContent-Length: 800\r\n\r\n" + std::string(800, 'x')),
              StartsWith("HTTP/1.1 503"));
  // What was counted is given back.
  EXPECT_THAT(ask(f, "POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 400\r\n\r\n" + std::string(400, 'x')),
              StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask(f, "POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 400\r\n\r\n" + std::string(400, 'x')),
              StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, TellsOnceThatTheClientWentAway) {
  std::promise<CloseReason> closed;
  std::promise<void> asked;
  Fixture f([&](std::shared_ptr<Exchange> e) {
    e->on_close = [&closed, e](CloseReason reason) { closed.set_value(reason); };
    asked.set_value();
  });
  int fd = f.connect();
  send_all(fd, "GET / HTTP/1.1\r\n\r\n");
  asked.get_future().wait();
  ::close(fd);
  EXPECT_EQ(closed.get_future().get(), CloseReason::kPeer);
}

TEST(HttpServer, DropsAReaderThatDoesNotReadAndKeepsNoMoreThanTheLimit) {
  constexpr int64_t kLimit = 100'000;
  std::promise<CloseReason> closed;
  std::atomic<int64_t> most = 0;
  Fixture f(
      [&](std::shared_ptr<Exchange> e) {
        bool is_open = true;
        e->on_close = [&](CloseReason reason) {
          is_open = false;
          closed.set_value(reason);
        };
        e->start(200, {});
        std::string piece(10'000, 'x');
        for (int i = 0; i < 100'000 && is_open; ++i) {
          e->write(piece);
          most = std::max<int64_t>(most, e->buffered_bytes());
        }
      },
      {.max_buffered_bytes = kLimit});
  int fd = f.connect();
  send_all(fd, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(closed.get_future().get(), CloseReason::kSlowReader);
  EXPECT_LE(most, kLimit);
  ::close(fd);
}

TEST(HttpServer, ClosesIdleConnectionsWhenItStopsKeepingThem) {
  Fixture f(echo);
  int idle = f.connect();
  send_all(idle, "GET /x HTTP/1.1\r\n\r\n");
  char piece[1000];
  EXPECT_GT(::recv(idle, piece, sizeof piece, 0), 0);
  EXPECT_EQ(f.num_connections(), 1);
  f.stop_keeping_alive();
  EXPECT_EQ(read_to_end(idle), "");
  EXPECT_THAT(ask(f, "GET / HTTP/1.1\r\n\r\n"), HasSubstr("Connection: close"));
}

TEST(HttpServer, AnswersFromAnywhereOnTheLoopAndLater) {
  std::vector<std::shared_ptr<Exchange>> waiting;
  Fixture* fixture = nullptr;
  Fixture f([&](std::shared_ptr<Exchange> e) { waiting.push_back(std::move(e)); });
  fixture = &f;
  int a = f.connect(), b = f.connect();
  send_all(a, "GET /a HTTP/1.1\r\nConnection: close\r\n\r\n");
  send_all(b, "GET /b HTTP/1.1\r\nConnection: close\r\n\r\n");
  while (fixture->on_loop([&] { return waiting.size(); }) < 2) std::this_thread::yield();
  f.on_loop([&] {
    for (auto& e : waiting) echo(e);
    waiting.clear();
    return 0;
  });
  EXPECT_THAT(read_to_end(b), EndsWith("GET /b? "));
  EXPECT_THAT(read_to_end(a), EndsWith("GET /a? "));
}

TEST(Http, DecodesPercentsAndFindsHeaders) {
  EXPECT_EQ(percent_decode("/a%2Fb%zz%4"), "/a/b%zz%4");
  EXPECT_EQ(percent_decode("%41%"), "A%");
  EXPECT_EQ(find_header({{"Content-Type", "a"}, {"content-type", "b"}}, "CONTENT-TYPE"), "a");
  EXPECT_EQ(find_header({}, "x"), "");
}

}  // namespace
}  // namespace deepinfer::net
