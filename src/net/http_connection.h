// One client's connection: bytes to requests, answers to bytes, and the time that each of its states may take.
//
//   handshake -> idle -> reading -> answering -> idle ...            keep-alive
//                           |           |
//                           +-----------+--> flushing -> lingering -> closed
//
//   Lingering: our side is shut down and what the client still sends is thrown away for a moment, so that an answer to
//   a request that was refused half-read is not lost by a reset.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/http_server.h"
#include "net/transport.h"

namespace deepinfer::net {

class HttpConnection;

// What a connection needs of the server that owns it.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual const HttpServerOptions& options() const = 0;
  virtual bool keeps_alive() const = 0;
  // Counts bytes of bodies; false, and nothing is counted, if that exceeds the limit.
  virtual bool add_body_bytes(int64_t bytes) = 0;
  virtual void on_closed(HttpConnection& connection) = 0;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Time = Loop::Clock::time_point;

  HttpConnection(ConnectionOwner& owner, std::unique_ptr<Transport> transport, std::string peer);
  ~HttpConnection();

  void open();
  // What a connection that exceeded its time is to be ended for.
  enum class Late { kNo, kWrite, kHandshake, kIdle, kHeaders, kBody, kLinger };
  Late late(Time now) const;
  void end_late(Late why);
  // Answers without having read anything, then closes.
  void refuse(int status, const std::string& message);
  void close(CloseReason reason);
  void close_if_idle();

 private:
  friend class HttpExchange;
  enum class State { kHandshake, kIdle, kReading, kAnswering, kFlushing, kLingering, kClosed };
  struct Parser;

  void read();
  void on_read(bool ok, std::size_t bytes);
  void parse();
  bool parse_some();
  void begin_message();
  bool count_body(std::size_t bytes);
  void release_body();
  void on_header();
  void begin_exchange();

  void send_head(int status, const Headers& headers, int64_t body_bytes);
  void send(std::string_view bytes);
  void send_chunk(std::string_view bytes);
  void end_exchange();
  void flush();
  void write_more();
  void linger();
  int64_t buffered_bytes() const { return static_cast<int64_t>(out_.size() + writing_.size() - written_); }

  ConnectionOwner& owner_;
  std::unique_ptr<Transport> transport_;
  std::string peer_;
  State state_ = State::kHandshake;
  std::shared_ptr<Exchange> exchange_;  // shared with the handler, which answers it

  std::vector<char> chunk_;  // what a read fills
  std::string input_;        // read, not yet parsed
  std::unique_ptr<Parser> parser_;
  bool is_reading_ = false, is_parsing_ = false;
  int64_t body_bytes_ = 0;  // counted by the owner

  std::string out_, writing_;  // to be written next; being written
  std::size_t written_ = 0;
  bool is_writing_ = false;

  // Of the current request.
  bool keeps_alive_ = true, is_http10_ = false, is_head_ = false, is_chunked_ = false, saw_header_ = false;
  Time began_, progress_;  // of the state; of reading or writing
};

}  // namespace deepinfer::net
