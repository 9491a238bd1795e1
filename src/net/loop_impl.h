// What the files of this folder share of the loop. Heavy: Asio.
#pragma once

#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include "net/loop.h"

namespace deepinfer::net {

struct Loop::Impl {
  explicit Impl(int num_workers) : workers(static_cast<std::size_t>(num_workers)) {}

  boost::asio::io_context context{1};
  boost::asio::thread_pool workers;
  std::vector<std::unique_ptr<boost::asio::steady_timer>> timers;
  std::unique_ptr<boost::asio::signal_set> signals;
};

}  // namespace deepinfer::net
