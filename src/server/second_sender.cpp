// Sends on a second thread; see second_sender.h.
#include "server/second_sender.h"

#include <sys/socket.h>
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include <algorithm>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/require.hpp>
#include <system_error>
#include <utility>

namespace takt::server {

namespace {

constexpr int kSentAlone = 4;             // of a turn's messages: waking the second thread takes as long
constexpr std::size_t kMaxWaiting = 4;

#if defined(__linux__)

std::vector<int> usable_cores() {
    std::vector<int> out;
    cpu_set_t cores;
    if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return out;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(static_cast<std::size_t>(core), &cores)) out.push_back(core);
    }
    return out;
}

int this_core() { return ::sched_getcpu(); }

void keep_off(std::thread& thread, int core, const std::vector<int>& cores) {
    cpu_set_t others;
    CPU_ZERO(&others);
    for (const int other : cores) {
        if (other != core) CPU_SET(static_cast<std::size_t>(other), &others);
    }
    (void)::pthread_setaffinity_np(thread.native_handle(), sizeof(others), &others);
}

#else

std::vector<int> usable_cores() { return {}; }
int this_core() { return -1; }
void keep_off(std::thread&, int, const std::vector<int>&) {}

#endif

}  // namespace

SecondSender::SecondSender(asio::any_io_executor executor, bool apart)
    : posting_(asio::require(std::move(executor), asio::execution::blocking.never)),
      cores_(usable_cores()),
      apart_(apart),
      is_alone_(cores_.size() < 2) {}

SecondSender::~SecondSender() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
}

void SecondSender::send(Job& job) {
    const ssize_t count = ::send(job.socket, job.bytes.data(), job.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    job.num_sent = count > 0 ? static_cast<std::size_t>(count) : 0;
    job.state_.store(Job::State::sent, std::memory_order_release);
}

bool SecondSender::wants_more() {
    has_sent_ = true;
    if (++num_in_turn_ == 1) {
        std::lock_guard lock(mutex_);
        if (!std::exchange(is_turn_posted_, true)) post_turn();
    }
    if (num_in_turn_ <= kSentAlone || is_alone_ || !start()) return false;
    std::lock_guard lock(mutex_);
    return waiting_.size() < kMaxWaiting;
}

void SecondSender::give(const std::shared_ptr<Job>& job) {
    std::lock_guard lock(mutex_);
    job->state_.store(Job::State::waiting, std::memory_order_relaxed);
    waiting_.push_back(job);
    if (!std::exchange(is_asleep_, false)) return;
    place();
    changed_.notify_one();
}

bool SecondSender::start() {
    if (thread_.joinable()) return true;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {      // no thread to be had: as on one core
        is_alone_ = true;
        return false;
    }
    place();
    return true;
}

// A new thread has the cores of the one that began it, which the engine may have narrowed to those that it leaves free.
void SecondSender::place() {
    if (!apart_) return;
    const int core = this_core();
    if (core < 0 || std::exchange(core_, core) == core) return;
    keep_off(thread_, core, cores_);
}

bool SecondSender::finish_if_sent(const std::shared_ptr<Job>& job) {
    if (job->state_.load(std::memory_order_acquire) != Job::State::sent) return false;
    finish(job);
    return true;
}

void SecondSender::finish(const std::shared_ptr<Job>& job) {
    std::unique_lock lock(mutex_);
    const auto waiting = std::find(waiting_.begin(), waiting_.end(), job);
    if (waiting != waiting_.end()) {
        waiting_.erase(waiting);
        lock.unlock();
        send(*job);
    } else {
        changed_.wait(lock, [&job] { return job->state_.load(std::memory_order_acquire) != Job::State::taken; });
        const auto sent = std::find(sent_.begin(), sent_.end(), job);
        if (sent != sent_.end()) sent_.erase(sent);
        lock.unlock();
    }
    if (job->state_.load(std::memory_order_acquire) == Job::State::sent) end(*job);
}

void SecondSender::end(Job& job) {
    job.state_.store(Job::State::free, std::memory_order_relaxed);
    job.finished();
}

void SecondSender::post_turn() {
    posting_.execute([weak = weak_from_this()] {
        if (auto self = weak.lock()) self->turn();
    });
}

// While messages come it only ends what the second thread has sent and comes again behind them; then it sends what still waits.
void SecondSender::turn() {
    const bool comes_again = std::exchange(has_sent_, false);
    if (!comes_again) num_in_turn_ = 0;
    std::vector<std::shared_ptr<Job>> ended;
    std::unique_lock lock(mutex_);
    ended.swap(sent_);
    is_turn_posted_ = comes_again;
    if (comes_again) {
        post_turn();
        lock.unlock();
    } else {
        while (!waiting_.empty()) {
            const std::shared_ptr<Job> job = std::move(waiting_.front());
            waiting_.pop_front();
            lock.unlock();
            send(*job);
            ended.push_back(job);
            lock.lock();
        }
        lock.unlock();
    }
    for (const auto& job : ended) {
        // One that ends may finish() another by closing its socket.
        if (job->state_.load(std::memory_order_acquire) == Job::State::sent) end(*job);
    }
}

void SecondSender::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        while (waiting_.empty() && !stopping_) {
            is_asleep_ = true;
            changed_.wait(lock);
        }
        is_asleep_ = false;
        if (stopping_) return;
        const std::shared_ptr<Job> job = std::move(waiting_.front());
        waiting_.pop_front();
        job->state_.store(Job::State::taken, std::memory_order_relaxed);
        lock.unlock();
        send(*job);
        lock.lock();
        sent_.push_back(job);
        changed_.notify_all();        // finish() may wait for it
        if (!std::exchange(is_turn_posted_, true)) post_turn();
    }
}

}  // namespace takt::server
