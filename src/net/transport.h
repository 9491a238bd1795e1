// A byte stream to one client: plain or TLS, over TCP or a unix socket.
//
// At most one read and one write at a time; the memory given must stay until `done` was called. After close() both are
// called with ok = false. Everything runs on the loop.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>

namespace deepinfer::net {

class Transport {
 public:
  using Done = std::function<void(bool ok, std::size_t bytes)>;
  virtual ~Transport() = default;

  virtual void handshake(std::function<void(bool ok)> done) = 0;
  virtual void read_some(char* data, std::size_t size, Done done) = 0;
  virtual void write_some(const char* data, std::size_t size, Done done) = 0;
  virtual void shutdown_send() = 0;
  virtual void close() = 0;
};

// `tls`, if there is one, is shared with the connections accepted while its certificate was in use.
std::unique_ptr<Transport> make_transport(boost::asio::ip::tcp::socket socket,
                                          std::shared_ptr<boost::asio::ssl::context> tls);
std::unique_ptr<Transport> make_transport(boost::asio::local::stream_protocol::socket socket);

}  // namespace deepinfer::net
