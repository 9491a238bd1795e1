// A byte stream to the other side: plain or TLS, over TCP or a unix socket.
//
// At most one read and one write at a time; the memory given and the transport must stay until `done` was called. After
// close() both are called with an error. Everything runs on the loop.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>

namespace deepinfer::net {

class Transport {
 public:
  using ErrorCode = boost::system::error_code;
  using Done = std::function<void(const ErrorCode& ec, std::size_t bytes)>;
  virtual ~Transport() = default;

  virtual void handshake(std::function<void(const ErrorCode& ec)> done) = 0;
  virtual void read_some(char* data, std::size_t size, Done done) = 0;
  virtual void write_some(const char* data, std::size_t size, Done done) = 0;
  virtual void shutdown_send() = 0;
  virtual void close() = 0;
};

// `tls`, if there is one, is shared with the connections accepted while its certificate was in use.
std::unique_ptr<Transport> make_transport(boost::asio::ip::tcp::socket socket,
                                          std::shared_ptr<boost::asio::ssl::context> tls);
std::unique_ptr<Transport> make_transport(boost::asio::local::stream_protocol::socket socket);
// The client's side; with `tls` the server has to show a certificate for `host`, a name or an address.
std::unique_ptr<Transport> make_client_transport(boost::asio::ip::tcp::socket socket,
                                                 std::shared_ptr<boost::asio::ssl::context> tls,
                                                 const std::string& host);

}  // namespace deepinfer::net
