#include "net/http_client.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http/basic_parser.hpp>

#include "net/loop_impl.h"
#include "net/transport.h"

namespace deepinfer::net {
namespace asio = boost::asio;
namespace http = boost::beast::http;
namespace {

using Tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr std::size_t kChunk = 16 << 10;
constexpr std::chrono::milliseconds kSweepPeriod{100};

// Hands head and body to whoever asked as they come.
class ResponseParser final : public http::basic_parser<false> {
 public:
  explicit ResponseParser(HttpClient::Events& events) : events_(events) {
    eager(true);
    body_limit(boost::none);
  }

 private:
  using View = boost::beast::string_view;
  void on_request_impl(http::verb, View, View, int, ErrorCode&) override {}
  void on_response_impl(int code, View, int, ErrorCode&) override { status_ = code; }
  void on_field_impl(http::field, View name, View value, ErrorCode&) override {
    headers_.push_back({std::string(name), std::string(value)});
  }
  void on_header_impl(ErrorCode&) override {
    if (events_.on_head) events_.on_head(status_, headers_);
  }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, ErrorCode&) override {}
  std::size_t on_body_impl(View body, ErrorCode&) override { return give(body); }
  void on_chunk_header_impl(std::uint64_t, View, ErrorCode&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, View body, ErrorCode&) override { return give(body); }
  void on_finish_impl(ErrorCode&) override {}

  std::size_t give(View body) {
    if (events_.on_body) events_.on_body({body.data(), body.size()});
    return body.size();
  }

  HttpClient::Events& events_;
  int status_ = 0;
  Headers headers_;
};

class ClientConnection;

class ConnectionPool {
 public:
  virtual ~ConnectionPool() = default;
  virtual const Tcp::resolver::results_type& addresses() const = 0;
  virtual asio::io_context& context() = 0;
  virtual std::unique_ptr<Transport> make_transport(Tcp::socket socket) = 0;
  // The connection's request is over; it may take another one if it is still open.
  virtual void on_idle(ClientConnection& connection) = 0;
};

class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  explicit ClientConnection(ConnectionPool& pool) : pool_(pool) {}

  void start(std::string message, HttpClient::Events events, Loop::Clock::time_point deadline) {
    message_ = std::move(message);
    events_ = std::move(events);
    deadline_ = deadline;
    is_running_ = true;
    has_answer_ = false;
    input_.clear();
    parser_.emplace(events_);
    is_reused_ = is_open();
    is_reused_ ? send() : connect();
  }
  bool is_late(Loop::Clock::time_point now) const { return is_running_ && now > deadline_; }
  bool is_open() const { return transport_ != nullptr; }
  void end(std::optional<Error> error) {
    if (!is_running_) return;
    is_running_ = false;
    if (error || is_writing() || !parser_->keep_alive()) close();
    auto self = shared_from_this();
    auto on_end = std::move(events_.on_end);
    pool_.on_idle(*this);
    if (on_end) on_end(error);
  }
  void close() {
    ErrorCode ignored;
    if (socket_) socket_->close(ignored);
    if (transport_) transport_->close();
    socket_.reset();
    transport_.reset();
  }

 private:
  void connect() {
    ++generation_;
    socket_ = std::make_shared<Tcp::socket>(pool_.context());
    auto on_connected = [self = shared_from_this(), socket = socket_, g = generation_](const ErrorCode& ec,
                                                                                       const Tcp::endpoint&) {
      if (!self->is_current(g)) return;
      if (ec) return self->fail("no connection", ec);
      self->transport_ = self->pool_.make_transport(std::move(*socket));
      self->shake_hands();
    };
    asio::async_connect(*socket_, pool_.addresses(), std::move(on_connected));
  }

  void shake_hands() {
    socket_.reset();
    transport_->handshake([self = shared_from_this(), t = transport_, g = generation_](const ErrorCode& ec) {
      if (!self->is_current(g)) return;
      ec ? self->fail("no TLS connection", ec) : self->send();
    });
  }

  // A server may answer before it has read everything, so the answer is read beside it, and says what went wrong.
  void send() {
    written_ = 0;
    write();
    read();
  }

  void write() {
    auto on_written = [self = shared_from_this(), t = transport_, g = generation_](const ErrorCode& ec, std::size_t n) {
      if (ec || !self->is_current(g)) return;
      self->written_ += n;
      if (self->is_writing()) self->write();
    };
    transport_->write_some(message_.data() + written_, message_.size() - written_, std::move(on_written));
  }

  void read() {
    chunk_.resize(kChunk);
    auto on_done = [self = shared_from_this(), t = transport_, g = generation_](const ErrorCode& ec, std::size_t n) {
      if (self->is_current(g)) self->on_read(ec, n);
    };
    transport_->read_some(chunk_.data(), chunk_.size(), std::move(on_done));
  }

  void on_read(const ErrorCode& ec, std::size_t bytes) {
    if (ec == asio::error::eof) return on_eof();
    if (ec) return is_stale() ? connect_anew() : fail("the connection broke", ec);
    has_answer_ = true;
    input_.append(chunk_.data(), bytes);
    ErrorCode problem;
    while (!input_.empty() && !parser_->is_done()) {
      std::size_t used = parser_->put(asio::const_buffer(input_.data(), input_.size()), problem);
      input_.erase(0, used);
      if (problem || used == 0) break;
    }
    if (problem && problem != http::error::need_more) return fail("this is not an HTTP/1.1 answer", problem);
    if (parser_->is_done()) return end(std::nullopt);
    read();
  }

  void on_eof() {
    if (is_stale()) return connect_anew();
    ErrorCode problem;
    if (has_answer_) parser_->put_eof(problem);
    if (has_answer_ && !problem && parser_->is_done()) return end(std::nullopt);
    end(Error{Code::kIo, has_answer_ ? "the answer was cut" : "the connection was closed without an answer"});
  }

  // A kept connection that the server closed before it saw the request.
  bool is_stale() const { return is_reused_ && !has_answer_; }
  void connect_anew() {
    close();
    is_reused_ = false;
    connect();
  }

  void fail(const char* what, const ErrorCode& ec) { end(Error{Code::kIo, fmt::format("{}: {}", what, ec.message())}); }
  bool is_writing() const { return written_ < message_.size(); }
  bool is_current(int64_t generation) const { return is_running_ && generation == generation_; }

  ConnectionPool& pool_;
  std::shared_ptr<Tcp::socket> socket_;   // while it connects; shared with the handler of that
  std::shared_ptr<Transport> transport_;  // once connected; shared with the handlers of what it does
  std::string message_, input_;
  std::size_t written_ = 0;  // of the message
  std::vector<char> chunk_;
  HttpClient::Events events_;
  std::optional<ResponseParser> parser_;
  Loop::Clock::time_point deadline_;
  int64_t generation_ = 0;  // of the socket: handlers of an earlier one are too late
  bool is_running_ = false, is_reused_ = false, has_answer_ = false;
};

class HttpClientImpl final : public HttpClient, public ConnectionPool {
 public:
  HttpClientImpl(Loop& loop, std::string authority, Options options)
      : loop_(loop), authority_(std::move(authority)), options_(std::move(options)) {
    loop_.every(kSweepPeriod, [this] { end_late(); });
  }
  ~HttpClientImpl() override {
    for (auto& [key, c] : running_) c->close();
    for (auto& c : idle_) c->close();
  }

  Result<void> resolve(const std::string& name, const std::string& port) {
    name_ = name;
    ErrorCode ec;
    addresses_ = Tcp::resolver(loop_.impl().context).resolve(name, port, ec);
    if (ec || addresses_.empty()) return deepinfer::fail(Code::kInvalid, "address {}:{}: {}", name, port, ec.message());
    return {};
  }

  Result<void> use_tls() {
    tls_ = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client);
    ErrorCode ec;
    tls_->set_default_verify_paths(ec);
    if (ec) return deepinfer::fail(Code::kIo, "the system's certificates: {}", ec.message());
    if (options_.trusted.empty()) return {};
    tls_->load_verify_file(options_.trusted, ec);
    if (ec) return deepinfer::fail(Code::kInvalid, "certificates {}: {}", options_.trusted, ec.message());
    return {};
  }

  void send(HttpRequest request, Events events) override {
    std::shared_ptr<ClientConnection> connection;  // shared with its own handlers
    if (idle_.empty()) {
      connection = std::make_shared<ClientConnection>(*this);
    } else {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    running_.emplace(connection.get(), connection);
    connection->start(message_of(request), std::move(events), Loop::Clock::now() + options_.timeout);
  }
  int num_running() const override { return static_cast<int>(running_.size()); }

 private:
  const Tcp::resolver::results_type& addresses() const override { return addresses_; }
  asio::io_context& context() override { return loop_.impl().context; }
  std::unique_ptr<Transport> make_transport(Tcp::socket socket) override {
    return make_client_transport(std::move(socket), tls_, name_);
  }
  void on_idle(ClientConnection& connection) override {
    auto it = running_.find(&connection);
    std::shared_ptr<ClientConnection> idle = std::move(it->second);
    running_.erase(it);
    if (!options_.keeps_connections) idle->close();
    if (idle->is_open()) idle_.push_back(std::move(idle));
  }

  std::string message_of(const HttpRequest& r) const {
    std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", r.method, r.path, authority_);
    for (const Header& h : r.headers) text += fmt::format("{}: {}\r\n", h.name, h.value);
    if (!options_.keeps_connections) text += "Connection: close\r\n";
    if (!r.body.empty()) text += fmt::format("Content-Length: {}\r\n", r.body.size());
    return text + "\r\n" + r.body;
  }

  void end_late() {
    std::vector<std::shared_ptr<ClientConnection>> late;
    for (auto& [key, c] : running_) {
      if (c->is_late(Loop::Clock::now())) late.push_back(c);
    }
    for (auto& c : late)
      c->end(Error{Code::kDeadline, fmt::format("there was no whole answer within {} ms", options_.timeout.count())});
  }

  Loop& loop_;
  std::string authority_, name_;  // "name:port", as the URL has it
  Options options_;
  std::shared_ptr<asio::ssl::context> tls_;  // shared with the connections
  Tcp::resolver::results_type addresses_;
  std::unordered_map<ClientConnection*, std::shared_ptr<ClientConnection>> running_;
  std::vector<std::shared_ptr<ClientConnection>> idle_;
};

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::create(Loop& loop, const std::string& url, const Options& options) {
  constexpr std::string_view kPlain = "http://", kTls = "https://";
  bool is_tls = url.starts_with(kTls);
  std::string host = is_tls || url.starts_with(kPlain) ? url.substr((is_tls ? kTls : kPlain).size()) : "";
  if (host.ends_with('/')) host.pop_back();
  if (host.empty() || host.find('/') != host.npos)
    return deepinfer::fail(Code::kInvalid, "'{}' is not a URL of the form http://HOST:PORT or https://HOST:PORT", url);
  std::size_t colon = host.rfind(':');
  bool has_port = colon != host.npos && host.find(']', colon) == host.npos;
  std::string name = host.substr(0, has_port ? colon : host.npos);
  if (name.size() > 1 && name.front() == '[') name = name.substr(1, name.size() - 2);
  auto client = std::make_unique<HttpClientImpl>(loop, host, options);
  if (is_tls) DI_TRY_VOID(client->use_tls());
  DI_TRY_VOID(client->resolve(name, has_port ? host.substr(colon + 1) : is_tls ? "443" : "80"));
  return std::unique_ptr<HttpClient>(std::move(client));
}

}  // namespace deepinfer::net
