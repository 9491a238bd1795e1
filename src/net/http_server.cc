#include "net/http_server.h"

#include <filesystem>
#include <unordered_map>

#include <sys/stat.h>
#include <unistd.h>
#include <boost/asio/local/stream_protocol.hpp>

#include "net/http_connection.h"
#include "net/loop_impl.h"
#include "net/transport.h"

namespace deepinfer::net {
namespace asio = boost::asio;
namespace {

using Tcp = asio::ip::tcp;
using Unix = asio::local::stream_protocol;
using ErrorCode = boost::system::error_code;

constexpr std::chrono::milliseconds kSweepPeriod{250}, kAcceptPause{50};

Result<std::shared_ptr<asio::ssl::context>> load_tls(const TlsFiles& files) {
  if (files.certificate.empty() && files.key.empty()) return std::shared_ptr<asio::ssl::context>();
  if (files.certificate.empty() || files.key.empty())
    return fail(Code::kInvalid, "TLS needs both a certificate and a key; only one file was given");
  // Shared by the server and the connections that were accepted with this certificate.
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  ErrorCode ec;
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv3 |
                           asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1,
                       ec);
  context->use_certificate_chain_file(files.certificate, ec);
  if (ec) return fail(Code::kInvalid, "TLS certificate {}: {}", files.certificate, ec.message());
  context->use_private_key_file(files.key, asio::ssl::context::pem, ec);
  if (ec) return fail(Code::kInvalid, "TLS key {}: {}", files.key, ec.message());
  return context;
}

class HttpServerImpl final : public HttpServer, public ConnectionOwner {
 public:
  HttpServerImpl(Loop& loop, HttpServerOptions options) : loop_(loop), options_(std::move(options)) {}

  ~HttpServerImpl() override {
    std::vector<std::shared_ptr<HttpConnection>> all;
    for (auto& [key, c] : connections_) all.push_back(c);
    for (auto& c : all) c->close(CloseReason::kDone);
    for (const std::string& path : unix_paths_) ::unlink(path.c_str());
  }

  Result<void> bind() {
    DI_TRY(tls_, load_tls(options_.tls));
    for (const ListenAddress& a : options_.addresses) {
      if (a.unix_path.empty()) {
        DI_TRY_VOID(bind_tcp(a));
      } else {
        DI_TRY_VOID(bind_unix(a.unix_path));
      }
    }
    loop_.every(kSweepPeriod, [this] { sweep(); });
    return {};
  }

  std::vector<std::string> urls() const override { return urls_; }
  int num_connections() const override { return static_cast<int>(connections_.size()); }

  void stop_keeping_alive() override {
    keeps_alive_ = false;
    std::vector<std::shared_ptr<HttpConnection>> all;
    for (auto& [key, c] : connections_) all.push_back(c);
    for (auto& c : all) c->close_if_idle();
  }

  Result<void> reload_tls() override {
    DI_TRY(tls_, load_tls(options_.tls));
    return {};
  }

 private:
  const HttpServerOptions& options() const override { return options_; }
  bool keeps_alive() const override { return keeps_alive_; }
  bool add_body_bytes(int64_t bytes) override {
    if (bytes > 0 && body_bytes_ + bytes > options_.limits.max_total_body_bytes) return false;
    body_bytes_ += bytes;
    return true;
  }
  void on_closed(HttpConnection& connection) override { connections_.erase(&connection); }

  Result<void> bind_tcp(const ListenAddress& a) {
    ErrorCode ec;
    Tcp::resolver resolver(loop_.impl().context);
    auto found = resolver.resolve(a.host, std::to_string(a.port), Tcp::resolver::passive, ec);
    if (ec || found.empty()) return fail(Code::kInvalid, "address {}:{}: {}", a.host, a.port, ec.message());
    auto acceptor = std::make_unique<Tcp::acceptor>(loop_.impl().context);
    Tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor->open(endpoint.protocol(), ec);
    if (!ec) acceptor->set_option(Tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor->bind(endpoint, ec);
    if (!ec) acceptor->listen(4096, ec);
    if (ec) return fail(Code::kIo, "address {}:{}: {}", a.host, a.port, ec.message());
    std::string host = endpoint.address().is_v6() ? "[" + endpoint.address().to_string() + "]" : a.host;
    urls_.push_back(fmt::format("{}://{}:{}", tls_ ? "https" : "http", host, acceptor->local_endpoint(ec).port()));
    tcp_.push_back(std::move(acceptor));
    accept_tcp(*tcp_.back());
    return {};
  }

  Result<void> bind_unix(const std::string& path) {
    struct stat info{};
    if (::lstat(path.c_str(), &info) == 0) {
      if (!S_ISSOCK(info.st_mode)) return fail(Code::kInvalid, "unix socket {}: a file of that name exists", path);
      ::unlink(path.c_str());  // left by a process that was killed
    }
    ErrorCode ec;
    auto acceptor = std::make_unique<Unix::acceptor>(loop_.impl().context);
    if (path.size() >= sizeof(sockaddr_un{}.sun_path))
      return fail(Code::kInvalid, "unix socket {}: the path has {} bytes, the limit is {}", path, path.size(),
                  sizeof(sockaddr_un{}.sun_path) - 1);
    acceptor->open(Unix(), ec);
    if (!ec) acceptor->bind(Unix::endpoint(path), ec);
    if (!ec) acceptor->listen(4096, ec);
    if (ec) return fail(Code::kIo, "unix socket {}: {}", path, ec.message());
    unix_paths_.push_back(path);
    urls_.push_back("unix:" + path);
    unix_.push_back(std::move(acceptor));
    accept_unix(*unix_.back());
    return {};
  }

  void accept_tcp(Tcp::acceptor& acceptor) {
    acceptor.async_accept([this, &acceptor](const ErrorCode& ec, Tcp::socket socket) {
      if (ec == asio::error::operation_aborted) return;
      if (ec) return pause([this, &acceptor] { accept_tcp(acceptor); });
      ErrorCode gone;
      auto remote = socket.remote_endpoint(gone);
      if (!gone) add(make_transport(std::move(socket), tls_), remote.address().to_string());
      accept_tcp(acceptor);
    });
  }

  void accept_unix(Unix::acceptor& acceptor) {
    acceptor.async_accept([this, &acceptor](const ErrorCode& ec, Unix::socket socket) {
      if (ec == asio::error::operation_aborted) return;
      if (ec) return pause([this, &acceptor] { accept_unix(acceptor); });
      add(make_transport(std::move(socket)), "unix");
      accept_unix(acceptor);
    });
  }

  // No file left, most likely: connections wait in the system's queue meanwhile.
  void pause(std::function<void()> then) {
    auto timer = std::make_shared<asio::steady_timer>(loop_.impl().context, kAcceptPause);  // kept by its own wait
    timer->async_wait([timer, then = std::move(then)](const ErrorCode& ec) {
      if (!ec) then();
    });
  }

  void add(std::unique_ptr<Transport> transport, std::string peer) {
    // Shared by the server and by the reads and writes under way.
    auto connection = std::make_shared<HttpConnection>(*this, std::move(transport), std::move(peer));
    bool is_full = num_connections() >= options_.limits.max_connections;
    connections_.emplace(connection.get(), connection);
    if (is_full && !tls_) {
      connection->refuse(503,
                         fmt::format("{} connections are open, which is the limit", options_.limits.max_connections));
    } else if (is_full) {
      connection->close(CloseReason::kDone);
    } else {
      connection->open();
    }
  }

  void sweep() {
    auto now = Loop::Clock::now();
    std::vector<std::pair<std::shared_ptr<HttpConnection>, HttpConnection::Late>> late;
    for (auto& [key, c] : connections_) {
      if (auto why = c->late(now); why != HttpConnection::Late::kNo) late.emplace_back(c, why);
    }
    for (auto& [c, why] : late) c->end_late(why);
  }

  Loop& loop_;
  HttpServerOptions options_;
  std::shared_ptr<asio::ssl::context> tls_;  // shared with the connections accepted while it was in use
  std::vector<std::unique_ptr<Tcp::acceptor>> tcp_;
  std::vector<std::unique_ptr<Unix::acceptor>> unix_;
  std::vector<std::string> urls_, unix_paths_;
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections_;
  bool keeps_alive_ = true;
  int64_t body_bytes_ = 0;  // of all connections
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(Loop& loop, HttpServerOptions options) {
  auto server = std::make_unique<HttpServerImpl>(loop, std::move(options));
  DI_TRY_VOID(server->bind());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace deepinfer::net
