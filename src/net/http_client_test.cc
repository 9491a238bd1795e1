// The client against the server of this folder, both on one loop, and against answers that are wrong on purpose.
#include "net/http_client.h"

#include <thread>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "net/http_server.h"

namespace deepinfer::net {
namespace {

using testing::HasSubstr;

struct Answer {
  int status = 0, num_pieces = 0;
  std::string body;
  std::optional<Error> error;
};

HttpClient::Events events_of(Answer& answer, std::function<void()> done) {
  return {.on_head = [&answer](int status, const Headers&) { answer.status = status; },
          .on_body =
              [&answer](std::string_view bytes) {
                answer.body += bytes;
                ++answer.num_pieces;
              },
          .on_end =
              [&answer, done](const std::optional<Error>& error) {
                answer.error = error;
                done();
              }};
}

Answer ask(Loop& loop, HttpClient& client, HttpRequest request) {
  Answer answer;
  client.send(std::move(request), events_of(answer, [&loop] { loop.stop(); }));
  loop.run();
  return answer;
}

std::unique_ptr<HttpServer> serve(Loop& loop, std::function<void(std::shared_ptr<Exchange>)> handler) {
  return *HttpServer::create(
      loop, {.addresses = {{.host = "127.0.0.1", .port = 0}},
             .handler = std::move(handler),
             .refuse = [](int status, const std::string& m) { return HttpResponse{.status = status, .body = m}; }});
}

TEST(HttpClient, ReadsWholeAndStreamedAnswersOverOneConnection) {
  Loop loop(1);
  int most_connections = 0;
  HttpServer* server_address = nullptr;
  auto server = serve(loop, [&](std::shared_ptr<Exchange> e) {
    most_connections = std::max(most_connections, server_address->num_connections());
    if (e->request.path == "/whole") return e->respond({.status = 404, .body = e->request.body});
    e->start(200, {});
    e->write("one");
    e->write("two");
    e->finish();
  });
  server_address = server.get();
  auto client = *HttpClient::create(loop, server->urls()[0], {});
  Answer whole = ask(loop, *client, {.method = "POST", .path = "/whole", .body = "hello"});
  EXPECT_EQ(whole.status, 404);
  EXPECT_EQ(whole.body, "hello");
  Answer stream = ask(loop, *client, {.method = "GET", .path = "/stream"});
  EXPECT_EQ(stream.body, "onetwo");
  EXPECT_FALSE(stream.error);
  EXPECT_EQ(most_connections, 1);
}

TEST(HttpClient, AKeptConnectionThatTheServerClosedIsReplaced) {
  Loop loop(1);
  auto server = serve(loop, [](std::shared_ptr<Exchange> e) { e->respond({.body = "fine"}); });
  auto client = *HttpClient::create(loop, server->urls()[0], {});
  EXPECT_EQ(ask(loop, *client, {.method = "GET", .path = "/"}).body, "fine");
  server->stop_keeping_alive();
  Answer second = ask(loop, *client, {.method = "GET", .path = "/"});
  EXPECT_FALSE(second.error) << second.error->message;
  EXPECT_EQ(second.body, "fine");
}

TEST(HttpClient, EveryRequestEndsOnce) {
  Loop loop(1);
  auto server = serve(loop, [](std::shared_ptr<Exchange> e) { e->respond({.body = e->request.body}); });
  auto client = *HttpClient::create(loop, server->urls()[0], {});
  constexpr int kCount = 200;
  std::vector<Answer> answers(kCount);
  int num_ended = 0;
  for (int i = 0; i < kCount; ++i) {
    client->send({.method = "POST", .path = "/", .body = std::to_string(i)},
                 events_of(answers[static_cast<std::size_t>(i)], [&] {
                   if (++num_ended == kCount) loop.stop();
                 }));
  }
  EXPECT_EQ(client->num_running(), kCount);
  loop.run();
  EXPECT_EQ(client->num_running(), 0);
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(answers[static_cast<std::size_t>(i)].body, std::to_string(i));
}

// A listener that answers its first connection with these bytes and closes it.
class OneAnswer {
 public:
  explicit OneAnswer(std::string bytes) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 1);
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this, bytes = std::move(bytes)] {
      int fd = ::accept(listener_, nullptr, nullptr);
      char request[4096];
      if (::recv(fd, request, sizeof request, 0) > 0) ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ::close(fd);
    });
  }
  ~OneAnswer() {
    thread_.join();
    ::close(listener_);
  }
  const std::string& url() const { return url_; }

 private:
  int listener_;
  std::string url_;
  std::thread thread_;
};

TEST(HttpClient, AnAnswerCutAtAnyByteIsAnError) {
  const std::string whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    OneAnswer server(whole.substr(0, cut));
    Loop loop(1);
    auto client = *HttpClient::create(loop, server.url(), {});
    Answer answer = ask(loop, *client, {.method = "GET", .path = "/"});
    EXPECT_EQ(answer.error.has_value(), cut < whole.size()) << cut;
  }
}

TEST(HttpClient, SaysWhatIsWrong) {
  Loop loop(1);
  for (const char* url : {"127.0.0.1:1", "ftp://127.0.0.1:1", "https://", "http://", "http://127.0.0.1:1/path"})
    EXPECT_FALSE(HttpClient::create(loop, url, {})) << url;
  {
    OneAnswer server("SSH-2.0-nothing\r\n\r\n");
    auto client = *HttpClient::create(loop, server.url(), {});
    EXPECT_THAT(ask(loop, *client, {.method = "GET", .path = "/"}).error->message, HasSubstr("not an HTTP"));
  }
  auto nobody = *HttpClient::create(loop, "http://127.0.0.1:1", {});
  EXPECT_THAT(ask(loop, *nobody, {.method = "GET", .path = "/"}).error->message, HasSubstr("no connection"));
}

TEST(HttpClient, CertificatesThatCannotBeReadAreAnError) {
  Loop loop(1);
  EXPECT_TRUE(HttpClient::create(loop, "https://127.0.0.1:1", {}));
  const std::string missing = testing::TempDir() + "/no_such.pem", empty = testing::TempDir() + "/empty.pem";
  ASSERT_TRUE(write_file(empty, ""));
  for (const std::string& file : {missing, empty}) {
    auto client = HttpClient::create(loop, "https://127.0.0.1:1", {.trusted = file});
    ASSERT_FALSE(client) << file;
    EXPECT_THAT(client.error().message, HasSubstr(file));
  }
}

TEST(HttpClient, ARequestWithoutAnAnswerEndsInTime) {
  Loop loop(1);
  std::vector<std::shared_ptr<Exchange>> kept;
  auto server = serve(loop, [&](std::shared_ptr<Exchange> e) { kept.push_back(std::move(e)); });
  auto client = *HttpClient::create(loop, server->urls()[0], {.timeout = std::chrono::milliseconds(50)});
  Answer answer = ask(loop, *client, {.method = "GET", .path = "/"});
  ASSERT_TRUE(answer.error);
  EXPECT_EQ(answer.error->code, Code::kDeadline);
}

}  // namespace
}  // namespace deepinfer::net
