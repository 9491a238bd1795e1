#include "net/transport.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>

namespace deepinfer::net {
namespace asio = boost::asio;
namespace {

using ErrorCode = Transport::ErrorCode;
using Handshake = asio::ssl::stream_base;

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

  void handshake(std::function<void(const ErrorCode&)> done) override { done({}); }
  void read_some(char* data, std::size_t size, Done done) override {
    socket_.async_read_some(asio::buffer(data, size), std::move(done));
  }
  void write_some(const char* data, std::size_t size, Done done) override {
    socket_.async_write_some(asio::buffer(data, size), std::move(done));
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
  TlsTransport(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> context,
               Handshake::handshake_type side)
      : context_(std::move(context)), stream_(std::move(socket), *context_), side_(side) {}

  void expect_host(const std::string& host) {
    ErrorCode is_name;
    asio::ip::make_address(host, is_name);
    if (is_name) SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
    stream_.set_verify_mode(asio::ssl::verify_peer);
    stream_.set_verify_callback(asio::ssl::host_name_verification(host));
  }
  void handshake(std::function<void(const ErrorCode&)> done) override {
    stream_.async_handshake(side_, std::move(done));
  }
  void read_some(char* data, std::size_t size, Done done) override {
    stream_.async_read_some(asio::buffer(data, size), std::move(done));
  }
  void write_some(const char* data, std::size_t size, Done done) override {
    stream_.async_write_some(asio::buffer(data, size), std::move(done));
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
  Handshake::handshake_type side_;
};

void set_options(asio::ip::tcp::socket& socket) {
  ErrorCode ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  bound_send_buffer(socket);
}

}  // namespace

std::unique_ptr<Transport> make_transport(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> tls) {
  set_options(socket);
  if (tls) return std::make_unique<TlsTransport>(std::move(socket), std::move(tls), Handshake::server);
  return std::make_unique<PlainTransport<asio::ip::tcp::socket>>(std::move(socket));
}

std::unique_ptr<Transport> make_transport(asio::local::stream_protocol::socket socket) {
  bound_send_buffer(socket);
  return std::make_unique<PlainTransport<asio::local::stream_protocol::socket>>(std::move(socket));
}

std::unique_ptr<Transport> make_client_transport(asio::ip::tcp::socket socket, std::shared_ptr<asio::ssl::context> tls,
                                                 const std::string& host) {
  set_options(socket);
  if (!tls) return std::make_unique<PlainTransport<asio::ip::tcp::socket>>(std::move(socket));
  auto transport = std::make_unique<TlsTransport>(std::move(socket), std::move(tls), Handshake::client);
  transport->expect_host(host);
  return transport;
}

}  // namespace deepinfer::net
