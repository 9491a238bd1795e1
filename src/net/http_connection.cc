#include "net/http_connection.h"

#include <utility>

#include <fmt/format.h>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace deepinfer::net {
namespace http = boost::beast::http;
namespace {

constexpr std::size_t kIdleChunk = 2048, kBodyChunk = 64 << 10;
constexpr std::size_t kMaxAhead = 64 << 10;  // read while a request is being answered
constexpr std::chrono::milliseconds kLingerTime{1500}, kHandshakeTime{10'000};

bool ends_line(char c) {
  return c == '\r' || c == '\n' || c == '\0';
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (char c : value) out += ends_line(c) ? ' ' : c;
  out += "\r\n";
}

}  // namespace

struct HttpConnection::Parser : http::request_parser<http::string_body> {};

// The answer's side of one request.
class HttpExchange final : public Exchange {
 public:
  HttpExchange(HttpRequest r, std::shared_ptr<HttpConnection> connection)
      : Exchange(std::move(r)), connection_(std::move(connection)) {}

  void respond(HttpResponse response) override {
    auto c = connection();
    if (!c || status != 0) return;
    status = response.status;
    bytes_sent = static_cast<int64_t>(response.body.size());
    c->send_head(status, response.headers, bytes_sent);
    if (!c->is_head_) c->send(response.body);
    end(*c);
  }
  void start(int new_status, const Headers& headers) override {
    auto c = connection();
    if (!c || status != 0) return;
    status = new_status;
    c->send_head(status, headers, -1);
    c->flush();
  }
  void write(std::string_view bytes) override {
    auto c = connection();
    if (!c || bytes.empty() || c->is_head_) return;
    bytes_sent += static_cast<int64_t>(bytes.size());
    c->send_chunk(bytes);
    c->flush();
    if (c->buffered_bytes() > c->owner_.options().limits.max_buffered_bytes) c->close(CloseReason::kSlowReader);
  }
  void finish() override {
    auto c = connection();
    if (!c) return;
    if (c->is_chunked_ && !c->is_head_) c->send("0\r\n\r\n");
    end(*c);
  }
  void abort() override {
    if (auto c = connection()) c->close(CloseReason::kDone);
  }
  bool is_open() const override { return connection_.lock() != nullptr; }
  int64_t buffered_bytes() const override {
    auto c = connection_.lock();
    return c ? c->buffered_bytes() : 0;
  }

  // Once: the connection has no further part in this.
  void detach(CloseReason reason) {
    connection_.reset();
    auto call = std::move(on_close);
    on_close = nullptr;
    if (call) call(reason);
  }

 private:
  std::shared_ptr<HttpConnection> connection() { return connection_.lock(); }
  void end(HttpConnection& c) { c.end_exchange(); }

  std::weak_ptr<HttpConnection> connection_;  // empty when it is over
};

HttpConnection::HttpConnection(ConnectionOwner& owner, std::unique_ptr<Transport> transport, std::string peer)
    : owner_(owner), transport_(std::move(transport)), peer_(std::move(peer)) {
  began_ = progress_ = Loop::Clock::now();
}

HttpConnection::~HttpConnection() = default;

void HttpConnection::open() {
  transport_->handshake([self = shared_from_this()](const Transport::ErrorCode& ec) {
    if (self->state_ != State::kHandshake) return;
    if (ec) return self->close(CloseReason::kPeer);
    self->state_ = State::kIdle;
    self->began_ = Loop::Clock::now();
    self->read();
  });
}

// ---- reading ----------------------------------------------------------------------------------------------------

void HttpConnection::read() {
  if (is_reading_ || state_ == State::kClosed) return;
  if (state_ == State::kAnswering && input_.size() >= kMaxAhead) return;
  chunk_.resize(state_ == State::kReading && saw_header_ ? kBodyChunk : kIdleChunk);
  is_reading_ = true;
  auto on_done = [self = shared_from_this()](const Transport::ErrorCode& ec, std::size_t n) { self->on_read(!ec, n); };
  transport_->read_some(chunk_.data(), chunk_.size(), std::move(on_done));
}

void HttpConnection::on_read(bool ok, std::size_t bytes) {
  is_reading_ = false;
  if (state_ == State::kClosed) return;
  if (!ok) return close(CloseReason::kPeer);
  progress_ = Loop::Clock::now();
  if (state_ != State::kFlushing && state_ != State::kLingering) {
    input_.append(chunk_.data(), bytes);
    parse();
  }
  read();
}

void HttpConnection::parse() {
  if (is_parsing_) return;
  is_parsing_ = true;
  while ((state_ == State::kIdle || state_ == State::kReading) && !input_.empty() && parse_some()) {
  }
  is_parsing_ = false;
}

// Gives the parser what there is; true if it took something and may take more.
bool HttpConnection::parse_some() {
  if (state_ == State::kIdle) begin_message();
  boost::system::error_code ec;
  std::size_t used = parser_->put(boost::asio::const_buffer(input_.data(), input_.size()), ec);
  input_.erase(0, used);
  if (ec == http::error::need_more) ec = {};
  if (!count_body(used)) {
    refuse(503, "the requests that are being read and answered hold too many bytes; try again");
    return false;
  }
  if (ec == http::error::body_limit) {
    refuse(413, fmt::format("the body is larger than the limit of {} bytes", owner_.options().limits.max_body_bytes));
    return false;
  }
  if (ec == http::error::header_limit) {
    refuse(431,
           fmt::format("the headers are larger than the limit of {} bytes", owner_.options().limits.max_header_bytes));
    return false;
  }
  if (ec) {
    refuse(400, fmt::format("this is not an HTTP/1.1 request: {}", ec.message()));
    return false;
  }
  if (parser_->is_header_done() && !saw_header_) on_header();
  if (state_ != State::kReading) return false;
  if (parser_->is_done()) {
    begin_exchange();
    return true;
  }
  return used > 0;
}

bool HttpConnection::count_body(std::size_t bytes) {
  if (!owner_.add_body_bytes(static_cast<int64_t>(bytes))) return false;
  body_bytes_ += static_cast<int64_t>(bytes);
  return true;
}

void HttpConnection::release_body() {
  owner_.add_body_bytes(-std::exchange(body_bytes_, 0));
}

void HttpConnection::begin_message() {
  state_ = State::kReading;
  began_ = progress_ = Loop::Clock::now();
  saw_header_ = false;
  parser_ = std::make_unique<Parser>();
  parser_->eager(true);
  parser_->header_limit(static_cast<std::uint32_t>(owner_.options().limits.max_header_bytes));
  parser_->body_limit(static_cast<std::uint64_t>(owner_.options().limits.max_body_bytes));
}

void HttpConnection::on_header() {
  saw_header_ = true;
  const auto& message = parser_->get();
  if (parser_->is_done()) return;
  if (equal_ignoring_case(std::string_view(message[http::field::expect]), "100-continue")) {
    send("HTTP/1.1 100 Continue\r\n\r\n");
    flush();
  }
}

void HttpConnection::begin_exchange() {
  auto message = parser_->release();
  parser_.reset();
  HttpRequest request{.method = std::string(std::string_view(message.method_string())), .peer = peer_};
  std::string_view target(message.target());
  std::size_t mark = target.find('?');
  request.path = percent_decode(target.substr(0, mark));
  if (mark != target.npos) request.query = target.substr(mark + 1);
  for (const auto& field : message) {
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  request.body = std::move(message.body());

  keeps_alive_ = message.keep_alive() && owner_.keeps_alive();
  is_http10_ = message.version() < 11;
  is_head_ = request.method == "HEAD";
  is_chunked_ = false;
  if (request.path.empty() || request.path.front() != '/') {
    return refuse(400, fmt::format("the request target '{}' does not begin with '/'", request.path));
  }
  state_ = State::kAnswering;
  began_ = Loop::Clock::now();
  exchange_ = std::make_shared<HttpExchange>(std::move(request), shared_from_this());
  auto exchange = exchange_;
  owner_.options().handler(std::move(exchange));
}

// ---- answering --------------------------------------------------------------------------------------------------

// `body_bytes` < 0: not known yet.
void HttpConnection::send_head(int status, const Headers& headers, int64_t body_bytes) {
  if (!owner_.keeps_alive()) keeps_alive_ = false;
  out_ += fmt::format("HTTP/1.1 {} {}\r\n", status, status_text(status));
  for (const Header& h : headers) append_header(out_, h.name, h.value);
  if (body_bytes >= 0) {
    if (status != 204 && status != 304) out_ += fmt::format("Content-Length: {}\r\n", body_bytes);
  } else if (is_http10_) {
    keeps_alive_ = false;  // the end of the connection is the end of the body
  } else {
    is_chunked_ = true;
    out_ += "Transfer-Encoding: chunked\r\n";
  }
  if (!keeps_alive_) {
    out_ += "Connection: close\r\n";
  } else if (is_http10_) {
    out_ += "Connection: keep-alive\r\n";
  }
  out_ += "\r\n";
}

void HttpConnection::send(std::string_view bytes) {
  out_ += bytes;
}

void HttpConnection::send_chunk(std::string_view bytes) {
  if (!is_chunked_) return send(bytes);
  fmt::format_to(std::back_inserter(out_), "{:x}\r\n", bytes.size());
  out_ += bytes;
  out_ += "\r\n";
}

void HttpConnection::end_exchange() {
  state_ = keeps_alive_ && owner_.keeps_alive() ? State::kIdle : State::kFlushing;
  began_ = Loop::Clock::now();
  std::shared_ptr<Exchange> ended = std::move(exchange_);
  exchange_.reset();
  release_body();
  if (ended) static_cast<HttpExchange&>(*ended).detach(CloseReason::kDone);
  if (state_ == State::kClosed) return;
  flush();
  if (state_ != State::kIdle) return;
  if (input_.empty()) {
    input_.shrink_to_fit();
  } else {
    parse();
  }
  read();
}

void HttpConnection::refuse(int status, const std::string& message) {
  keeps_alive_ = false;
  parser_.reset();
  release_body();
  HttpResponse response = owner_.options().refuse(status, message);
  send_head(response.status, response.headers, static_cast<int64_t>(response.body.size()));
  send(response.body);
  state_ = State::kFlushing;
  began_ = Loop::Clock::now();
  flush();
}

void HttpConnection::flush() {
  if (is_writing_ || state_ == State::kClosed) return;
  if (out_.empty()) {
    if (state_ == State::kFlushing) linger();
    return;
  }
  writing_.swap(out_);
  written_ = 0;
  progress_ = Loop::Clock::now();
  write_more();
}

void HttpConnection::write_more() {
  is_writing_ = true;
  transport_->write_some(writing_.data() + written_, writing_.size() - written_,
                         [self = shared_from_this()](const Transport::ErrorCode& ec, std::size_t n) {
                           self->is_writing_ = false;
                           if (self->state_ == State::kClosed) return;
                           if (ec) return self->close(CloseReason::kPeer);
                           self->written_ += n;
                           self->progress_ = Loop::Clock::now();
                           if (self->written_ < self->writing_.size()) return self->write_more();
                           self->writing_.clear();
                           self->written_ = 0;
                           if (self->writing_.capacity() > kBodyChunk) self->writing_.shrink_to_fit();
                           self->flush();
                         });
}

void HttpConnection::linger() {
  state_ = State::kLingering;
  began_ = Loop::Clock::now();
  input_.clear();
  transport_->shutdown_send();
  read();
}

// ---- ending -----------------------------------------------------------------------------------------------------

HttpConnection::Late HttpConnection::late(Time now) const {
  const HttpLimits& limits = owner_.options().limits;
  if (is_writing_ && now - progress_ > limits.write_timeout) return Late::kWrite;
  auto in_state = now - began_;
  switch (state_) {
    case State::kHandshake:
      return in_state > kHandshakeTime ? Late::kHandshake : Late::kNo;
    case State::kIdle:
      return in_state > limits.idle_timeout && !is_writing_ ? Late::kIdle : Late::kNo;
    case State::kReading:
      if (!saw_header_ && in_state > limits.header_timeout) return Late::kHeaders;
      return in_state > limits.body_timeout || now - progress_ > limits.header_timeout ? Late::kBody : Late::kNo;
    case State::kLingering:
      return in_state > kLingerTime ? Late::kLinger : Late::kNo;
    case State::kAnswering:
    case State::kFlushing:
    case State::kClosed:
      return Late::kNo;
  }
  return Late::kNo;
}

void HttpConnection::end_late(Late why) {
  const HttpLimits& limits = owner_.options().limits;
  switch (why) {
    case Late::kNo:
      return;
    case Late::kWrite:
      return close(CloseReason::kSlowReader);
    case Late::kHandshake:
      return close(CloseReason::kPeer);
    case Late::kIdle:
    case Late::kLinger:
      return close(CloseReason::kDone);
    case Late::kHeaders:
      return refuse(408, fmt::format("the headers took more than {} ms", limits.header_timeout.count()));
    case Late::kBody:
      return refuse(408, fmt::format("the body took more than {} ms, or {} ms passed without a byte of it",
                                     limits.body_timeout.count(), limits.header_timeout.count()));
  }
}

void HttpConnection::close_if_idle() {
  if (state_ == State::kIdle && !is_writing_) close(CloseReason::kDone);
}

void HttpConnection::close(CloseReason reason) {
  if (state_ == State::kClosed) return;
  auto self = shared_from_this();
  state_ = State::kClosed;
  transport_->close();
  release_body();
  std::shared_ptr<Exchange> cut = std::move(exchange_);
  exchange_.reset();
  out_.clear();
  if (cut) static_cast<HttpExchange&>(*cut).detach(reason);
  owner_.on_closed(*this);
}

}  // namespace deepinfer::net
