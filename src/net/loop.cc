#include "net/loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include "net/loop_impl.h"

namespace deepinfer::net {
namespace asio = boost::asio;
namespace {

void rearm(asio::steady_timer& timer, std::chrono::milliseconds period, std::shared_ptr<std::function<void()>> work) {
  timer.expires_after(period);
  timer.async_wait([&timer, period, work](const boost::system::error_code& ec) {
    if (ec) return;
    (*work)();
    rearm(timer, period, work);
  });
}

void wait_for_signal(asio::signal_set& set, std::shared_ptr<std::function<void(int)>> work) {
  set.async_wait([&set, work](const boost::system::error_code& ec, int number) {
    if (ec) return;
    (*work)(number);
    wait_for_signal(set, work);
  });
}

}  // namespace

Loop::Loop(int num_workers) : impl_(std::make_unique<Impl>(num_workers)) {}

Loop::~Loop() {
  impl_->workers.stop();
  impl_->workers.join();
}

void Loop::run() {
  impl_->context.restart();  // run() may be called again after stop()
  auto guard = asio::make_work_guard(impl_->context);
  impl_->context.run();
}

void Loop::stop() {
  impl_->context.stop();
}

void Loop::post(std::function<void()> work) {
  asio::post(impl_->context, std::move(work));
}

void Loop::offload(std::function<void()> work, std::function<void()> done) {
  asio::post(impl_->workers, [this, work = std::move(work), done = std::move(done)]() mutable {
    work();
    post(std::move(done));
  });
}

void Loop::at(Clock::time_point when, std::function<void()> work) {
  // Owned by its own wait.
  auto timer = std::make_shared<asio::steady_timer>(impl_->context, when);
  timer->async_wait([timer, work = std::move(work)](const boost::system::error_code& ec) {
    if (!ec) work();
  });
}

void Loop::every(std::chrono::milliseconds period, std::function<void()> work) {
  impl_->timers.push_back(std::make_unique<asio::steady_timer>(impl_->context));
  // Shared by the waits of one timer, each of which hands it to the next.
  rearm(*impl_->timers.back(), period, std::make_shared<std::function<void()>>(std::move(work)));
}

void Loop::on_signals(const std::vector<int>& signals, std::function<void(int)> work) {
  impl_->signals = std::make_unique<asio::signal_set>(impl_->context);
  for (int s : signals) impl_->signals->add(s);
  wait_for_signal(*impl_->signals, std::make_shared<std::function<void(int)>>(std::move(work)));
}

}  // namespace deepinfer::net
