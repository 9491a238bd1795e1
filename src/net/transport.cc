#include "net/transport.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/stream.hpp>

namespace deepinfer::net {
namespace asio = boost::asio;
namespace {

using ErrorCode = boost::system::error_code;

// The system would let the buffer of a socket whose reader is slow grow to megabytes. Tokens need little: this is 10
// MB/s over a path of 10 ms.
constexpr int kSendBuffer = 128 << 10;

template <typename Socket>
void bound_send_buffer(Socket& socket) {
  ErrorCode ignored;
  socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
}

template <typename Socket>
void close_socket(Socket& socket) {
  ErrorCode ignored;
  socket.close(ignored);
}

template <typename Socket>
class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  void handshake(std::function<void(bool)> done) override { done(true); }
  void read_some(char* data, std::size_t size, Done done) override {
    socket_.async_read_some(asio::buffer(data, size),
                            [done = std::move(done)](const ErrorCode& ec, std::size_t n) { done(!ec, n); });
  }
  void write_some(const char* data, std::size_t size, Done done) override {
    socket_.async_write_some(asio::buffer(data, size),
                             [done = std::move(done)](const ErrorCode& ec, std::size_t n) { done(!ec, n); });
  }
  void shutdown_send() override {
    ErrorCode ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void close() override { close_socket(socket_); }

 private:
  Socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}

  void handshake(std::function<void(bool)> done) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [done = std::move(done)](const ErrorCode& ec) { done(!ec); });
  }
  void read_some(char* data, std::size_t size, Done done) override {
    stream_.async_read_some(asio::buffer(data, size),
                            [done = std::move(done)](const ErrorCode& ec, std::size_t n) { done(!ec, n); });
  }
  void write_some(const char* data, std::size_t size, Done done) override {
    stream_.async_write_some(asio::buffer(data, size),
                             [done = std::move(done)](const ErrorCode& ec, std::size_t n) { done(!ec, n); });
  }
  // Lengths are always known or chunked, so a client can tell a whole answer without TLS's own end mark.
  void shutdown_send() override {
    ErrorCode ignored;
    stream_.next_layer().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  }
  void close() override { close_socket(stream_.next_layer()); }

 private:
  std::shared_ptr<asio::ssl::context> context_;
  asio::ssl::stream<asio::ip::tcp::socket> stream_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> tls) {
  ErrorCode ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  bound_send_buffer(socket);
  if (tls) return std::make_unique<TlsTransport>(std::move(socket), std::move(tls));
  return std::make_unique<PlainTransport<asio::ip::tcp::socket>>(std::move(socket));
}

std::unique_ptr<Transport> make_transport(asio::local::stream_protocol::socket socket) {
  bound_send_buffer(socket);
  return std::make_unique<PlainTransport<asio::local::stream_protocol::socket>>(std::move(socket));
}

}  // namespace deepinfer::net
